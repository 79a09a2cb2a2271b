use std::future::poll_fn;
use std::io::{self, Write as _};
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use super::feed::{Feed, Place};

/// Maximum size of a request head.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// Serves a connection by hand: one write for each HTTP/1.1 chunk.
pub(super) async fn connection<I: AsyncRead + AsyncWrite + Unpin>(mut io: I, feed: Arc<Feed>) {
    // The client has disconnected.
    let _ = serve(&mut io, &feed).await;
}

async fn serve<I: AsyncRead + AsyncWrite + Unpin>(io: &mut I, feed: &Arc<Feed>) -> io::Result<()> {
    while let Some(head) = head(io).await? {
        let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
        if super::is_watch(&String::from_utf8_lossy(line)) {
            // An idle watch does not keep the request.
            drop(head);
            return watch(io, feed).await;
        }
        let list = super::list(feed);
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{list}", list.len());
        io.write_all(answer.as_bytes()).await?;
        io.flush().await?;
    }
    Ok(())
}

/// Reads the head of a request without a body; `None` at the end. Clients here wait for each response.
async fn head<I: AsyncRead + Unpin>(io: &mut I) -> io::Result<Option<Vec<u8>>> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() > HEAD_BYTES_MAX || io.read_buf(&mut head).await? == 0 {
            return Ok(None);
        }
    }
    Ok(Some(head))
}

async fn watch<I: AsyncWrite + Unpin>(io: &mut I, feed: &Arc<Feed>) -> io::Result<()> {
    let mut place = Place::behind(feed);
    io.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").await?;
    io.flush().await?;
    while let Some(frames) = poll_fn(|cx| place.poll_next(cx)).await {
        let mut chunk = Vec::with_capacity(frames.len() + 16);
        write!(chunk, "{:x}\r\n", frames.len())?;
        chunk.extend_from_slice(&frames);
        chunk.extend_from_slice(b"\r\n");
        io.write_all(&chunk).await?;
        io.flush().await?;
    }
    Ok(())
}
