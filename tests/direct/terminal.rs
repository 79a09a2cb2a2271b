//! `fanoutctl fanout top` on a terminal: keys as input, a screen as output, and the terminal restored at its end.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use rustix::fs::{Mode, OFlags, open};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

use crate::direct::{self, PODS, eventually};

/// `top` with a terminal of its own.
struct Top {
    child: KilledChild,
    /// The test's end of the terminal; writes to it are keys.
    ours: File,
    /// The process's end, which shows the mode in which it is left.
    theirs: File,
    output: Arc<Mutex<Vec<u8>>>,
    reading: JoinHandle<()>,
}

/// A process that is killed when dropped.
struct KilledChild(Child);

/// Columns and rows at the start.
const SCREEN: (u16, u16) = (120, 30);
const ENTER: &str = "\x1b[?1049h";
const LEAVE: &str = "\x1b[?1049l";

impl Top {
    fn start(arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
        grantpt(&ours).and_then(|()| unlockpt(&ours)).expect("a terminal");
        let name = ptsname(&ours, Vec::new()).expect("a terminal has a name");
        let theirs = File::from(open(&name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).expect("a terminal"));
        resize(&theirs, SCREEN);
        let end = || Stdio::from(theirs.try_clone().expect("a descriptor"));
        let mut command = Command::new(env!("CARGO_BIN_EXE_kube-fanout"));
        command.args(["fanout", "top"]).args(arguments).env_remove("NO_COLOR").env("TERM", "xterm-256color");
        command.envs(environment.iter().copied()).stdin(end()).stdout(end()).stderr(end());
        let child = KilledChild(command.spawn().expect("the binary starts"));
        let (ours, output) = (File::from(ours), Arc::<Mutex<Vec<u8>>>::default());
        let (mut reader, written) = (ours.try_clone().expect("a descriptor"), output.clone());
        let reading = std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // Reading fails when the last process end is closed.
            while let Ok(read @ 1..) = reader.read(&mut bytes) {
                written.lock().expect("no panic").extend_from_slice(&bytes[..read]);
            }
        });
        Self { child, ours, theirs, output, reading }
    }

    fn press(&mut self, keys: &str) {
        self.ours.write_all(keys.as_bytes()).expect("it reads");
    }

    /// The output so far.
    fn output(&self) -> String {
        String::from_utf8_lossy(&self.output.lock().expect("no panic")).into_owned()
    }

    /// Waits until the screen contains this text.
    async fn shows(&self, part: &str) {
        eventually(part, || async { screen(&self.output()).contains(part) }).await;
    }

    fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([&format!("-{name}"), &self.child.0.id().to_string()]).status();
        assert!(sent.expect("kill runs").success());
    }

    /// Whether the terminal is in canonical mode, with echo.
    fn is_ordinary(&self) -> bool {
        let modes = tcgetattr(&self.theirs).expect("a terminal").local_modes;
        modes.contains(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG)
    }

    /// Its exit code and its whole output.
    async fn ended(mut self) -> (Option<i32>, String) {
        let child = Mutex::new(&mut self.child.0);
        let is_over = || async { child.lock().expect("no panic").try_wait().expect("it is ours").is_some() };
        eventually("its end", is_over).await;
        let code = self.child.0.wait().expect("it is ours").code();
        let is_ordinary = self.is_ordinary();
        drop(self.theirs);
        self.reading.join().expect("no panic");
        let output = String::from_utf8_lossy(&self.output.lock().expect("no panic")).into_owned();
        assert!(is_ordinary, "the terminal is left as it was: {output}");
        (code, output)
    }
}

impl Drop for KilledChild {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The text that a terminal shows after this output, without styles.
fn screen(output: &str) -> String {
    let mut lines: Vec<Vec<char>> = vec![vec![' '; SCREEN.0.into()]; SCREEN.1.into()];
    let (mut row, mut column) = (0, 0);
    let mut rest = output.chars();
    while let Some(letter) = rest.next() {
        match letter {
            '\x1b' if rest.next() == Some('[') => {
                let mut order = String::new();
                while !order.ends_with(|letter: char| letter.is_ascii_alphabetic()) {
                    let Some(letter) = rest.next() else { break };
                    order.push(letter);
                }
                if order == "2J" {
                    lines.iter_mut().for_each(|line| line.fill(' '));
                }
                let place = order.strip_suffix('H').and_then(|place| place.split_once(';'));
                if let Some((Ok(to_row), Ok(to_column))) = place.map(|(a, b)| (a.parse::<usize>(), b.parse::<usize>()))
                {
                    (row, column) = (to_row - 1, to_column - 1);
                }
            }
            '\x1b' => {}
            '\r' => column = 0,
            '\n' => row += 1,
            _ => {
                if let Some(cell) = lines.get_mut(row).and_then(|line| line.get_mut(column)) {
                    *cell = letter;
                }
                column += 1;
            }
        }
    }
    let lines = lines.into_iter().map(|line| line.into_iter().collect::<String>().trim_end().to_owned());
    lines.collect::<Vec<_>>().join("\n")
}

fn resize(terminal: &File, (columns, rows): (u16, u16)) {
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(terminal, size).expect("a terminal");
}

/// Asserts that the alternate screen is left once, after everything drawn on it, and that the cursor is visible.
fn assert_restored(output: &str) {
    assert_eq!((output.matches(ENTER).count(), output.matches(LEAVE).count()), (1, 1), "{output:?}");
    let (_, last) = output.rsplit_once(LEAVE).expect("it is left");
    assert!(!last.contains("pods.v1") && output.rfind("\x1b[?25h") > output.rfind("\x1b[?25l"), "{output:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn top_handles_keys_and_restores_terminal() {
    let up = demo::upstream().pods(20).run().await;
    let plan = direct::app(&up).admin_on_socket();
    let (admin, app) = (plan.admin_flag(), plan.run().await);
    let watch = app.watch(PODS).from(up.revision()).await;
    watch.reached(up.churn(10).await).await;

    let mut top = Top::start(&["--address", &admin, "--every", "50ms"], &[]);
    top.shows("pods.v1").await;
    assert!(!top.is_ordinary(), "keys are read as they are pressed");
    assert!(top.output().starts_with(ENTER), "{:?}", top.output());
    top.press("\t");
    top.shows("AGENT").await;
    top.press("?");
    top.shows("press any key to close").await;
    top.press("x/nobody\r");
    top.shows("filter \"nobody\"").await;
    top.shows("No row matches the filter.").await;
    // A smaller terminal is redrawn at the next refresh, with the keys in its last line. The test sends no SIGWINCH,
    // because crossterm may delay a key that arrives together with the signal.
    resize(&top.theirs, (60, 20));
    eventually("the keys", || async {
        screen(&top.output()).lines().nth(19).is_some_and(|l| l.starts_with(" q quit"))
    })
    .await;
    top.press("\x1b");
    top.shows(" pods.v1").await;
    top.press("q");
    let (code, output) = top.ended().await;
    assert_eq!(code, Some(0), "{output:?}");
    assert_restored(&output);
    drop(watch);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn signals_end_top_and_no_color_disables_colors() {
    let up = demo::upstream().pods(3).run().await;
    let app = direct::app(&up).run().await;
    let admin = app.admin_client().url();
    for (end, environment) in [("TERM", [("NO_COLOR", "1")]), ("INT", [("NO_COLOR", "")]), ("HUP", [("X", "")])] {
        let top = Top::start(&["--address", &admin], &environment);
        top.shows("Space").await;
        top.signal(end);
        let (code, output) = top.ended().await;
        assert_eq!(code, Some(0), "{end}: {output:?}");
        assert_restored(&output);
        let is_coloured = output.contains("\x1b[38;5;");
        assert_eq!(is_coloured, environment[0] != ("NO_COLOR", "1"), "{output:?}");
    }
    let mut top = Top::start(&["--address", &admin], &[]);
    top.shows("Space").await;
    top.press("\x03");
    let (code, output) = top.ended().await;
    assert_eq!(code, Some(0), "{output:?}");
    assert_restored(&output);
}

/// Without a proxy, or without a terminal that can show a screen, there is none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn top_prints_plain_text_without_usable_terminal() {
    let up = demo::upstream().pods(3).run().await;
    let app = direct::app(&up).run().await;
    let admin = app.admin_client().url();
    let (code, output) = Top::start(&["--address", "http://127.0.0.1:1"], &[]).ended().await;
    assert!(code == Some(2) && !output.contains(ENTER) && output.contains("http://127.0.0.1:1: "), "{output:?}");
    let (code, output) = Top::start(&["--address", &admin, "--times", "1"], &[]).ended().await;
    assert!(code == Some(0) && !output.contains('\x1b') && output.contains("watches are hidden"), "{output:?}");
    let dumb = Top::start(&["--address", &admin, "--every", "50ms"], &[("TERM", "dumb")]);
    dumb.shows("watches are hidden").await;
    dumb.signal("TERM");
    assert!(!dumb.ended().await.1.contains('\x1b'));
}
