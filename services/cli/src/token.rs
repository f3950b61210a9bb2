//! `token`: signs a JWT for trying things out.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use jsonwebtoken::{EncodingKey, Header};

use crate::{OK, connect, output, time};

const EXAMPLES: &str = "\
Examples:
  doorbuster token alice
  curl -X POST -H \"Authorization: Bearer $(doorbuster token alice)\" http://127.0.0.1:8080/v1/vouchers/tv/orders";

/// Sign a token for testing, with DOORBUSTER_JWT_SECRET
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The user it speaks for
    user: String,
    /// How long it is good
    #[arg(long, default_value = "1h", value_parser = time::parse_duration)]
    valid: Duration,
}

pub(crate) fn execute(args: Args) -> anyhow::Result<u8> {
    let env = connect::env();
    let secret = env.required("DOORBUSTER_JWT_SECRET", "the secret that purchase checks tokens with")?;
    output::line(&sign(&secret, &args.user, args.valid)?);
    Ok(OK)
}

/// A token (HS256) that says `user`, good for `valid` from now.
pub(crate) fn sign(secret: &str, user: &str, valid: Duration) -> anyhow::Result<String> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let claims = serde_json::json!({ "sub": user, "iat": now, "exp": now.saturating_add(valid.as_secs()) });
    let key = EncodingKey::from_secret(secret.as_bytes()).context("the secret cannot sign")?;
    jsonwebtoken::encode(&Header::default(), &claims, &key).context("cannot sign the token")
}
