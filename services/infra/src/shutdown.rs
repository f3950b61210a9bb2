//! Shutdown as an argument: a token that the first SIGTERM or SIGINT cancels; the second ends the process at once.

pub use tokio_util::sync::CancellationToken;

/// A token that is cancelled by the first SIGTERM or SIGINT of this process. The second one exits with code 130 at once.
///
/// Must be called within a tokio runtime, once.
pub fn on_signals() -> std::io::Result<CancellationToken> {
    todo!()
}
