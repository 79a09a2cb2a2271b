//! One direction of a connection, copied unit by unit.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::sleep;

use super::framing::{Class, Direction, Framing, Unit, Wire};
use super::plan::{Kind, Passing, Place, Plan, Side};
use super::relay::{Link, Shared};

/// The reason why a direction ended abnormally.
#[derive(Debug)]
pub enum Over {
    /// One of the two sides has closed the connection.
    Io,
    /// The fault ends the connection after this time.
    Fault(Kind, Duration),
}

impl From<io::Error> for Over {
    fn from(_: io::Error) -> Self {
        Self::Io
    }
}

pub struct Pump<R, W> {
    link: Arc<Link>,
    direction: Direction,
    framing: Framing,
    from: R,
    to: W,
    /// Bytes that have been read and not forwarded.
    pending: Vec<u8>,
}

/// The maximum number of bytes per read.
const PART: usize = 16 << 10;
/// The number of bytes of one trickle.
const TRICKLED: usize = 400;
const TRICKLE_EVERY: Duration = Duration::from_millis(1);
/// The start of a GOAWAY frame (RFC 9113 §6.8), without its payload.
const GOAWAY: [u8; 9] = [0, 0, 8, 7, 0, 0, 0, 0, 0];
const INTERNAL_ERROR: u32 = 2;

impl<R: AsyncRead + Unpin, W: AsyncWrite + Unpin> Pump<R, W> {
    pub fn new((link, direction, framing): (Arc<Link>, Direction, Framing), from: R, to: W) -> Self {
        Self { link, direction, framing, from, to, pending: Vec::new() }
    }

    /// Forwards until the sender has ended.
    pub async fn run(mut self) -> Result<(), Over> {
        loop {
            while let Some(unit) = self.framing.unit(&self.pending) {
                self.note(&unit);
                if !self.unit(unit).await? {
                    return Ok(self.to.shutdown().await?);
                }
            }
            if !self.read().await? {
                self.to.write_all(&self.pending).await?;
                return Ok(self.to.shutdown().await?);
            }
        }
    }

    /// Reads. Returns whether any bytes arrived.
    async fn read(&mut self) -> io::Result<bool> {
        self.pending.reserve(PART);
        Ok(self.from.read_buf(&mut self.pending).await? > 0)
    }

    /// Records the newest stream that a client has opened.
    fn note(&self, unit: &Unit) {
        let stream = self.pending.get(5..9).and_then(<[u8]>::first_chunk).map(|id| u32::from_be_bytes(*id));
        if self.direction == Direction::Up && self.framing.wire() == Wire::H2 && unit.header > 0 {
            self.link.newest.fetch_max(stream.unwrap_or(0) & (u32::MAX >> 1), Ordering::Relaxed);
        }
    }

    /// Forwards a unit, with its fault if there is one. Returns `false` if the sender ended within it.
    async fn unit(&mut self, unit: Unit) -> Result<bool, Over> {
        let (wire, direction, shared) = (self.framing.wire(), self.direction, self.link.shared.clone());
        let armed = shared.armed.load(Ordering::Relaxed);
        shared.events.fetch_add(usize::from(unit.class == Class::Event), Ordering::Relaxed);
        let (is_its_own, place) = (self.link.is_its_own, Place { wire, direction, cargo: unit.cargo(&self.pending) });
        let passing = Passing { place, is_its_own, unit, bytes: &self.pending };
        let meets = || shared.plans.lock().expect("not poisoned").meet(&passing);
        let Some(mut plan) = armed.then(meets).flatten() else { return Ok(self.pass(unit.len).await?) };
        let hit = |kind, at| shared.hit(kind, place, at);
        if plan.kind == Kind::Flip {
            let at = plan.flip(shared.side, wire, &unit, &mut self.pending);
            hit(Kind::Flip, at);
            return Ok(self.pass(unit.len).await?);
        }
        let at = plan.offset(&unit);
        if !self.pass(at).await? || self.pending.is_empty() && !self.read().await? {
            return Ok(false);
        }
        // The rest of the unit has arrived or is in flight, and is not forwarded yet.
        hit(plan.kind, at);
        let trickled = self.suffer(&mut plan).await?;
        for _ in 0..trickled.min(unit.len - at) {
            if !self.pass(1).await? {
                return Ok(false);
            }
            sleep(TRICKLE_EVERY).await;
        }
        Ok(self.pass(unit.len - at - trickled.min(unit.len - at)).await?)
    }

    /// Applies the planned fault. Returns how many of the next bytes trickle.
    async fn suffer(&mut self, plan: &mut Plan) -> Result<usize, Over> {
        let shared = self.link.shared.clone();
        match plan.kind {
            Kind::Cut => {
                if plan.rng.bool() {
                    self.to.shutdown().await?;
                }
                return Err(Over::Fault(Kind::Cut, Duration::ZERO));
            }
            Kind::Reset => return Err(Over::Fault(Kind::Reset, Duration::ZERO)),
            Kind::Blackhole => {
                let time = plan.time(500, 2000);
                lasts(&shared, sleep(time));
                return Err(Over::Fault(Kind::Blackhole, time));
            }
            Kind::Delay => sleep(plan.time(50, 1500)).await,
            Kind::GoAway => self.go_away(plan).await?,
            Kind::Trickle => return Ok(TRICKLED),
            Kind::Flip => {}
        }
        Ok(0)
    }

    /// Sends the client a GOAWAY. It is true for the streams that the client has not opened yet.
    async fn go_away(&mut self, plan: &mut Plan) -> io::Result<()> {
        let newest = if plan.rng.bool() { u32::MAX >> 1 } else { self.link.newest.load(Ordering::Relaxed) };
        let why = if plan.rng.u8(..4) == 0 { INTERNAL_ERROR } else { 0 };
        self.to.write_all(&[&GOAWAY[..], &newest.to_be_bytes(), &why.to_be_bytes()].concat()).await?;
        self.to.flush().await?;
        if plan.rng.bool() || self.link.shared.side == Side::Downstream {
            let (link, time) = (self.link.clone(), plan.time(50, 800));
            lasts(&self.link.shared, async move {
                sleep(time).await;
                link.doom.notify_one();
            });
        }
        Ok(())
    }

    /// Forwards `count` bytes. Returns whether the sender had that many.
    async fn pass(&mut self, mut count: usize) -> io::Result<bool> {
        while count > 0 {
            if self.pending.is_empty() && !self.read().await? {
                return Ok(false);
            }
            let part = count.min(self.pending.len());
            self.to.write_all(&self.pending[..part]).await?;
            self.pending.drain(..part);
            count -= part;
        }
        self.to.flush().await?;
        Ok(true)
    }
}

/// A fault that is still in effect.
struct Lasting(Arc<Shared>);

impl Drop for Lasting {
    fn drop(&mut self) {
        self.0.lasting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Counts a fault as being in effect until the future has completed.
fn lasts(shared: &Arc<Shared>, until: impl Future<Output = ()> + Send + 'static) {
    shared.lasting.fetch_add(1, Ordering::Relaxed);
    let lasting = Lasting(shared.clone());
    drop(tokio::spawn(async move {
        until.await;
        drop(lasting);
    }));
}
