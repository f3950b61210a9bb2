//! The settings of this service, read once at start. Each variable stands in the table of `docs/CONFIGURATION.md`.

use std::{net::SocketAddr, time::Duration};

use base64::{Engine, prelude::BASE64_STANDARD_NO_PAD};
use domain::OrderKey;
use infra::config::{ConfigError, Env};

use crate::auth::Verifier;

const ORDER_KEY: &str = "DOORBUSTER_ORDER_KEY";
const JWT_SECRET: &str = "DOORBUSTER_JWT_SECRET";
const JWT_PUBLIC_KEY: &str = "DOORBUSTER_JWT_PUBLIC_KEY";

/// How a secret that is wrong appears in an error: not at all.
const HIDDEN: &str = "(not shown)";

/// Begins every signing secret that was made up for a demo or a trial. Such a secret is accepted only where `DOORBUSTER_DEMO=1` says that
/// this is one, so that it cannot be taken along into a real deployment.
pub const DEMO_SECRET_PREFIX: &str = "demo-";

/// Shortest HS256 secret in bytes: the length of the digest (RFC 7518, section 3.2).
const MIN_SECRET: usize = 32;

/// The settings of the purchase service.
pub struct PurchaseConfig {
    /// Where buyers call.
    pub listen: SocketAddr,
    /// Where `/healthz`, `/readyz` and `/metrics` are.
    pub admin: SocketAddr,
    pub(crate) order_key: OrderKey,
    pub(crate) verifier: Verifier,
    /// Purchases that are worked on at one moment; more wait their turn.
    pub(crate) max_in_flight: usize,
    /// Longest wait for that; then 503.
    pub(crate) turn_patience: Duration,
    /// Purchases without an acknowledgement at one moment, in flight or answered "pending"; more are shed with 503.
    pub(crate) max_unacknowledged: usize,
    /// Longest wait for the acknowledgement before a buyer is told "pending".
    pub(crate) ack_deadline: Duration,
    /// Once a purchase answered "pending" has waited this long for its acknowledgement, new ones are shed.
    pub(crate) unacknowledged_too_long: Duration,
    /// Purchases a second that one user may try for long.
    pub(crate) user_rate: u32,
    /// Purchases that one user may try at once.
    pub(crate) user_burst: u32,
    /// From the signal to stop until the end of the process.
    pub(crate) shutdown_deadline: Duration,
    /// How long a start waits for servers that cannot be reached.
    pub(crate) start_patience: Duration,
}

impl PurchaseConfig {
    pub fn from_env(env: &Env) -> Result<Self, ConfigError> {
        Ok(Self {
            listen: env.address("DOORBUSTER_PURCHASE_LISTEN", "0.0.0.0:8080")?,
            admin: env.address("DOORBUSTER_PURCHASE_ADMIN", "0.0.0.0:9101")?,
            order_key: order_key(env)?,
            verifier: verifier(env)?,
            max_in_flight: env.number("DOORBUSTER_PURCHASE_MAX_IN_FLIGHT", 2_048, 1..=100_000)?,
            turn_patience: env.millis("DOORBUSTER_PURCHASE_TURN_MS", 500, 0..=60_000)?,
            max_unacknowledged: env.number("DOORBUSTER_PURCHASE_MAX_UNACKNOWLEDGED", 20_000, 1..=1_000_000)?,
            ack_deadline: env.millis("DOORBUSTER_PURCHASE_ACK_MS", 2_000, 10..=60_000)?,
            unacknowledged_too_long: env.millis("DOORBUSTER_PURCHASE_UNACKNOWLEDGED_MS", 10_000, 100..=600_000)?,
            user_rate: env.number("DOORBUSTER_PURCHASE_USER_RATE", 10, 1..=1_000_000)?,
            user_burst: env.number("DOORBUSTER_PURCHASE_USER_BURST", 20, 1..=1_000_000)?,
            shutdown_deadline: env.millis("DOORBUSTER_PURCHASE_SHUTDOWN_MS", 25_000, 100..=600_000)?,
            start_patience: env.millis("DOORBUSTER_PURCHASE_START_MS", 60_000, 0..=3_600_000)?,
        })
    }
}

fn invalid(name: &'static str, value: &str, problem: impl Into<String>) -> ConfigError {
    ConfigError::Invalid { name, value: value.to_owned(), problem: problem.into() }
}

/// Hexadecimal where it consists of hexadecimal digits only (which base64 of a random key practically never does), else base64.
fn order_key(env: &Env) -> Result<OrderKey, ConfigError> {
    let text =
        env.required(ORDER_KEY, "the key of all order ids, at least 32 random bytes as hex or base64 (openssl rand -hex 32)")?;
    let bytes = if text.len().is_multiple_of(2) && text.bytes().all(|b| b.is_ascii_hexdigit()) {
        (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).ok()).collect::<Option<Vec<u8>>>()
    } else {
        BASE64_STANDARD_NO_PAD.decode(text.trim_end_matches('=')).ok()
    };
    let bytes = bytes.ok_or_else(|| invalid(ORDER_KEY, HIDDEN, "it is neither hexadecimal nor base64"))?;
    OrderKey::new(&bytes).ok_or_else(|| {
        invalid(ORDER_KEY, HIDDEN, format!("at least {} bytes are needed, but it has {}", OrderKey::MIN_LEN, bytes.len()))
    })
}

fn verifier(env: &Env) -> Result<Verifier, ConfigError> {
    let verifier = match (env.get(JWT_SECRET), env.get(JWT_PUBLIC_KEY)) {
        (Some(secret), None) => {
            if secret.starts_with(DEMO_SECRET_PREFIX) && !env.flag("DOORBUSTER_DEMO", false)? {
                return Err(invalid(JWT_SECRET, HIDDEN, "this secret was made for a demo: use one of your own"));
            }
            if secret.len() < MIN_SECRET {
                return Err(invalid(JWT_SECRET, HIDDEN, format!("at least {MIN_SECRET} bytes are needed")));
            }
            Verifier::with_secret(secret.as_bytes()).map_err(|e| invalid(JWT_SECRET, HIDDEN, e.to_string()))?
        }
        (None, Some(path)) => {
            let pem = std::fs::read(path).map_err(|e| invalid(JWT_PUBLIC_KEY, path, format!("cannot read this file: {e}")))?;
            Verifier::with_public_key(&pem).ok_or_else(|| {
                invalid(JWT_PUBLIC_KEY, path, "no public key (RSA, P-256 or Ed25519) in PEM form is in this file")
            })?
        }
        (Some(_), Some(_)) => {
            return Err(invalid(JWT_SECRET, HIDDEN, format!("set either this or {JWT_PUBLIC_KEY}, not both")));
        }
        (None, None) => {
            return Err(ConfigError::Missing {
                name: JWT_PUBLIC_KEY,
                purpose: "the PEM file with the public key that verifies buyers' tokens (or set DOORBUSTER_JWT_SECRET)",
            });
        }
    };
    Ok(verifier.expecting(env.get("DOORBUSTER_JWT_AUDIENCE"), env.get("DOORBUSTER_JWT_ISSUER")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "0123456789abcdef0123456789abcdef";

    fn with(vars: &[(&str, &str)]) -> Result<PurchaseConfig, String> {
        let usual = [(ORDER_KEY, "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"), (JWT_SECRET, SECRET)];
        let vars = usual.iter().chain(vars).map(|(k, v)| (*k, *v));
        PurchaseConfig::from_env(&Env::of(vars)).map_err(|e| e.to_string())
    }

    #[test]
    fn defaults_are_enough() {
        let config = with(&[]).unwrap();
        assert_eq!(config.listen.port(), 8080);
        assert_eq!(config.max_in_flight, 2048);
    }

    #[test]
    fn a_bad_value_is_one_line_that_names_the_variable_and_no_secret() {
        let short = "c2hvcnQtYnV0LXNlY3JldA==";
        for (name, value) in [
            ("DOORBUSTER_PURCHASE_LISTEN", "8080"),
            ("DOORBUSTER_PURCHASE_ADMIN", "localhost"),
            (ORDER_KEY, short),
            (ORDER_KEY, "not base64!"),
            (ORDER_KEY, "abcd"),
            (JWT_SECRET, "short"),
            (JWT_PUBLIC_KEY, "/nowhere/key.pem"),
            ("DOORBUSTER_PURCHASE_ACK_MS", "2s"),
            ("DOORBUSTER_PURCHASE_MAX_IN_FLIGHT", "0"),
        ] {
            let error = with(&[(name, value)]).err().unwrap_or_else(|| panic!("{name}={value} was accepted"));
            assert!(error.contains("DOORBUSTER_"), "{error}");
            assert!(!error.contains('\n') && !error.contains(short) && !error.contains(SECRET), "{error}");
        }
        assert!(with(&[(ORDER_KEY, "")]).err().unwrap().contains(ORDER_KEY));
        assert!(with(&[(JWT_SECRET, "")]).err().unwrap().contains(JWT_PUBLIC_KEY));
    }

    #[test]
    fn the_order_key_is_the_same_in_hex_and_base64() {
        let id = |key: &str| {
            let config = with(&[(ORDER_KEY, key)]).unwrap();
            let voucher = domain::VoucherId::parse("v").unwrap();
            config.order_key.order_id(&voucher, &domain::UserId::parse("u").unwrap(), None)
        };
        let hex = id(&"f7".repeat(32));
        assert_eq!(hex, id("9/f39/f39/f39/f39/f39/f39/f39/f39/f39/f39/c="));
        assert_eq!(hex, id("9/f39/f39/f39/f39/f39/f39/f39/f39/f39/f39/c"));
    }

    #[test]
    fn a_demo_secret_is_refused_outside_the_demo() {
        let secret = format!("{DEMO_SECRET_PREFIX}{SECRET}");
        assert!(with(&[(JWT_SECRET, &secret)]).err().unwrap().contains("demo"));
        assert!(with(&[(JWT_SECRET, &secret), ("DOORBUSTER_DEMO", "1")]).is_ok());
    }
}
