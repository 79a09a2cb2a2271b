use std::io::{IsTerminal as _, Read as _};

use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use tokio::sync::mpsc;

/// Keys pressed in the terminal, without waiting for Enter. Dropping this restores the terminal's mode.
pub struct PressedKeys {
    pressed: mpsc::Receiver<u8>,
    before: Termios,
}

/// The maximum number of pending key presses.
const KEYS_MAX: usize = 16;

impl PressedKeys {
    /// Starts to read keys; returns `None` if standard input is not a terminal.
    ///
    /// # Errors
    /// If the terminal's mode cannot be changed.
    pub fn listen() -> std::io::Result<Option<Self>> {
        let input = std::io::stdin();
        if !input.is_terminal() {
            return Ok(None);
        }
        let before = tcgetattr(&input)?;
        let mut each = before.clone();
        each.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
        tcsetattr(&input, OptionalActions::Now, &each)?;
        let (press, pressed) = mpsc::channel(KEYS_MAX);
        // This thread lives until the process ends, because a blocking read of a terminal cannot be cancelled.
        std::thread::spawn(move || {
            let bytes = std::io::stdin().lock().bytes();
            for key in bytes.map_while(Result::ok) {
                if press.blocking_send(key).is_err() {
                    return;
                }
            }
        });
        Ok(Some(Self { pressed, before }))
    }

    /// Returns the next key; `None` at the end of the input.
    pub async fn next(&mut self) -> Option<u8> {
        self.pressed.recv().await
    }
}

impl Drop for PressedKeys {
    fn drop(&mut self) {
        // An error is ignored, because the terminal may be closed.
        let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &self.before);
    }
}
