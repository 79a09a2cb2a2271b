use std::io::{IsTerminal as _, Read as _};

use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use tokio::sync::mpsc;

/// The keys that are pressed in the terminal, each as it is pressed. The terminal is as it was when this is dropped.
pub struct PressedKeys {
    pressed: mpsc::Receiver<u8>,
    before: Termios,
}

/// How many keys may be pressed that are not looked at yet.
const KEYS_MAX: usize = 16;

impl PressedKeys {
    /// Begins to listen; `None` where the input is no terminal.
    ///
    /// # Errors
    /// The terminal cannot be switched to single keys.
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
        // It waits for a key until the process ends: nothing else ends a read of a terminal.
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

    /// The next key; `None` when there are no more.
    pub async fn next(&mut self) -> Option<u8> {
        self.pressed.recv().await
    }
}

impl Drop for PressedKeys {
    fn drop(&mut self) {
        // Nothing can be done about a terminal that is gone.
        let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &self.before);
    }
}
