//! Shutdown as an argument: a token that the first SIGTERM or SIGINT cancels; the second ends the process at once.

use tokio::signal::unix::{SignalKind, signal};
pub use tokio_util::sync::CancellationToken;

/// Exit code of a process that was told twice: 128 + SIGINT, as shells report it.
const TOLD_TWICE: i32 = 130;

/// A token that is cancelled by the first SIGTERM or SIGINT of this process. The second one exits with code 130 at once.
///
/// Must be called within a tokio runtime, once.
pub fn on_signals() -> std::io::Result<CancellationToken> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let token = CancellationToken::new();
    let stop = token.clone();
    tokio::spawn(async move {
        for told in 1.. {
            let name = tokio::select! {
                _ = terminate.recv() => "SIGTERM",
                _ = interrupt.recv() => "SIGINT",
            };
            if told > 1 {
                tracing::warn!("{name} again: ending at once");
                std::process::exit(TOLD_TWICE);
            }
            tracing::info!("{name}: shutting down");
            stop.cancel();
        }
    });
    Ok(token)
}
