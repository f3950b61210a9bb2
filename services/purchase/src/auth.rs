//! Who is buying: verifies the bearer token (a JWT) and takes the user from its `sub`.
//!
//! The algorithm is fixed by the configured key, never by the token. `exp` is required; `exp`, `nbf` and `iat` share one leeway.

use axum::http::{HeaderMap, header::AUTHORIZATION};
use domain::UserId;
use jsonwebtoken::{Algorithm, DecodingKey, Validation, errors::ErrorKind};
use serde::Deserialize;

/// Seconds by which the clock of whoever signed may differ from ours, on `exp`, `nbf` and `iat`.
pub(crate) const LEEWAY_SECONDS: u64 = 30;

/// Longest token in bytes. Checked before any cryptography, so that a giant one costs nothing.
const MAX_TOKEN: usize = 8 * 1024;

/// Why a caller is not known. The texts are for the caller and hold nothing of the token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unauthorized {
    #[error("an Authorization header with a bearer token is needed")]
    Missing,
    #[error("the token is too long")]
    TooLong,
    #[error("the token has expired")]
    Expired,
    #[error("the token is not valid yet")]
    NotYet,
    #[error("the token's sub is not a user id")]
    NoUser,
    #[error("the token is not valid")]
    Invalid,
}

#[derive(Deserialize)]
struct Claims {
    sub: String,
    iat: Option<f64>,
}

/// Verifies tokens with one key.
pub(crate) struct Verifier {
    key: DecodingKey,
    validation: Validation,
}

impl Verifier {
    /// HS256 with a shared secret.
    pub(crate) fn with_secret(secret: &[u8]) -> Result<Self, jsonwebtoken::errors::Error> {
        Ok(Self::new(DecodingKey::from_secret(secret)?, Algorithm::HS256))
    }

    /// RS256, ES256 or EdDSA, whichever the PEM holds a public key for; `None`: for none of them.
    pub(crate) fn with_public_key(pem: &[u8]) -> Option<Self> {
        let rsa = || DecodingKey::from_rsa_pem(pem).map(|key| Self::new(key, Algorithm::RS256));
        let ec = || DecodingKey::from_ec_pem(pem).map(|key| Self::new(key, Algorithm::ES256));
        let ed = || DecodingKey::from_ed_pem(pem).map(|key| Self::new(key, Algorithm::EdDSA));
        rsa().or_else(|_| ec()).or_else(|_| ed()).ok()
    }

    fn new(key: DecodingKey, algorithm: Algorithm) -> Self {
        let mut validation = Validation::new(algorithm);
        validation.leeway = LEEWAY_SECONDS;
        validation.validate_nbf = true;
        validation.validate_aud = false;
        validation.set_required_spec_claims(&["exp", "sub"]);
        Self { key, validation }
    }

    /// Also requires this audience and issuer, where given. Without an audience, tokens for any are accepted.
    pub(crate) fn expecting(mut self, audience: Option<&str>, issuer: Option<&str>) -> Self {
        if let Some(audience) = audience {
            self.validation.validate_aud = true;
            self.validation.set_audience(&[audience]);
            self.validation.required_spec_claims.insert("aud".to_owned());
        }
        if let Some(issuer) = issuer {
            self.validation.set_issuer(&[issuer]);
            self.validation.required_spec_claims.insert("iss".to_owned());
        }
        self
    }

    /// The user whose token the request carries.
    pub(crate) fn user(&self, headers: &HeaderMap) -> Result<UserId, Unauthorized> {
        let mut all = headers.get_all(AUTHORIZATION).iter();
        // Two headers are two callers.
        let (Some(header), None) = (all.next(), all.next()) else { return Err(Unauthorized::Missing) };
        let header = header.to_str().map_err(|_| Unauthorized::Missing)?;
        let (scheme, token) = header.split_once(' ').ok_or(Unauthorized::Missing)?;
        if !scheme.eq_ignore_ascii_case("bearer") {
            return Err(Unauthorized::Missing);
        }
        self.verify(token.trim())
    }

    fn verify(&self, token: &str) -> Result<UserId, Unauthorized> {
        if token.len() > MAX_TOKEN {
            return Err(Unauthorized::TooLong);
        }
        let claims = jsonwebtoken::decode::<Claims>(token, &self.key, &self.validation).map_err(|e| match e.kind() {
            ErrorKind::ExpiredSignature => Unauthorized::Expired,
            ErrorKind::ImmatureSignature => Unauthorized::NotYet,
            _ => Unauthorized::Invalid,
        })?;
        let latest = (jsonwebtoken::get_current_timestamp() + LEEWAY_SECONDS) as f64;
        if claims.claims.iat.is_some_and(|iat| iat > latest) {
            return Err(Unauthorized::NotYet);
        }
        UserId::parse(&claims.claims.sub).map_err(|_| Unauthorized::NoUser)
    }
}

#[cfg(test)]
mod tests {
    use jsonwebtoken::{EncodingKey, Header, encode};
    use serde_json::{Value, json};

    use super::*;

    const SECRET: &[u8] = b"0123456789abcdef0123456789abcdef";

    fn now() -> i64 {
        jsonwebtoken::get_current_timestamp() as i64
    }

    fn sign(claims: &Value) -> String {
        encode(&Header::default(), claims, &EncodingKey::from_secret(SECRET).unwrap()).unwrap()
    }

    fn verify(claims: Value) -> Result<UserId, Unauthorized> {
        Verifier::with_secret(SECRET).unwrap().verify(&sign(&claims))
    }

    #[test]
    fn the_user_is_the_sub_byte_for_byte() {
        for user in ["7", "007", "9007199254740993", "Zoë {x}", "d9428888-122b-11e1-b85c-61cd3cbb3210"] {
            assert_eq!(verify(json!({"sub": user, "exp": now() + 60})).unwrap().as_str(), user);
        }
        for bad in [json!(""), json!("a\u{0}b"), json!("a\nb"), json!("u".repeat(129))] {
            assert_eq!(verify(json!({"sub": bad, "exp": now() + 60})), Err(Unauthorized::NoUser));
        }
        for bad in [json!(7), json!(null), json!(["a"])] {
            assert_eq!(verify(json!({"sub": bad, "exp": now() + 60})), Err(Unauthorized::Invalid));
        }
        assert_eq!(verify(json!({"exp": now() + 60})), Err(Unauthorized::Invalid));
    }

    #[test]
    fn small_skew_passes_and_large_is_refused_on_all_three_instants() {
        let user = |exp: i64, nbf: i64, iat: i64| {
            verify(json!({"sub": "u", "exp": now() + exp, "nbf": now() + nbf, "iat": now() + iat}))
        };
        assert!(user(60, 0, 0).is_ok());
        assert!(user(-20, 20, 20).is_ok());
        assert_eq!(user(-600, 0, 0), Err(Unauthorized::Expired));
        assert_eq!(user(60, 600, 0), Err(Unauthorized::NotYet));
        assert_eq!(user(60, 0, 600), Err(Unauthorized::NotYet));
    }

    #[test]
    fn exp_is_required_and_is_a_number() {
        for claims in [json!({"sub": "u"}), json!({"sub": "u", "exp": "4102444800"}), json!({"sub": "u", "exp": null})] {
            assert_eq!(verify(claims), Err(Unauthorized::Invalid));
        }
        assert!(verify(json!({"sub": "u", "exp": now() as f64 + 60.5, "iat": now() as f64 - 0.5})).is_ok());
    }

    #[test]
    fn audience_and_issuer_are_required_where_configured() {
        let verifier = Verifier::with_secret(SECRET).unwrap().expecting(Some("shop"), Some("https://id.example"));
        let user = |claims: Value| verifier.verify(&sign(&claims));
        assert!(user(json!({"sub": "u", "exp": now() + 60, "aud": ["x", "shop"], "iss": "https://id.example"})).is_ok());
        for bad in [
            json!({"sub": "u", "exp": now() + 60}),
            json!({"sub": "u", "exp": now() + 60, "aud": "other", "iss": "https://id.example"}),
            json!({"sub": "u", "exp": now() + 60, "aud": "shop", "iss": "https://other.example"}),
        ] {
            assert_eq!(user(bad), Err(Unauthorized::Invalid));
        }
    }

    #[test]
    fn the_token_does_not_choose_its_algorithm() {
        let claims = json!({"sub": "u", "exp": now() + 60});
        let verifier = Verifier::with_secret(SECRET).unwrap();
        let hs512 = encode(&Header::new(Algorithm::HS512), &claims, &EncodingKey::from_secret(SECRET).unwrap()).unwrap();
        assert_eq!(verifier.verify(&hs512), Err(Unauthorized::Invalid));
        let payload = sign(&claims).split('.').nth(1).unwrap().to_owned();
        let none = "eyJhbGciOiJub25lIiwidHlwIjoiSldUIn0";
        for token in [format!("{none}.{payload}."), format!("{none}.{payload}.x"), format!("{none}.{payload}")] {
            assert_eq!(verifier.verify(&token), Err(Unauthorized::Invalid));
        }
        let other = encode(&Header::default(), &claims, &EncodingKey::from_secret(b"another secret").unwrap()).unwrap();
        assert_eq!(verifier.verify(&other), Err(Unauthorized::Invalid));
    }

    #[test]
    fn giant_and_garbled_tokens_are_refused() {
        let verifier = Verifier::with_secret(SECRET).unwrap();
        assert_eq!(verifier.verify(&"a".repeat(MAX_TOKEN + 1)), Err(Unauthorized::TooLong));
        for token in ["", ".", "..", "...", "a.b.c", "é.é.é", "eyJhbGciOiJIUzI1NiJ9.e30.AAAA"] {
            assert_eq!(verifier.verify(token), Err(Unauthorized::Invalid), "{token:?}");
        }
        let mut headers = HeaderMap::new();
        assert_eq!(verifier.user(&headers), Err(Unauthorized::Missing));
        for header in ["Bearer", "Basic abc", "bearer"] {
            headers.insert(AUTHORIZATION, header.parse().unwrap());
            assert_eq!(verifier.user(&headers), Err(Unauthorized::Missing));
        }
        headers.insert(AUTHORIZATION, format!("bearer {}", sign(&json!({"sub": "u", "exp": now() + 60}))).parse().unwrap());
        assert!(verifier.user(&headers).is_ok());
        headers.append(AUTHORIZATION, headers[AUTHORIZATION].clone());
        assert_eq!(verifier.user(&headers), Err(Unauthorized::Missing));
    }

    #[test]
    fn a_public_key_verifies_its_own_kind_only() {
        let claims = json!({"sub": "u", "exp": now() + 60});
        // The first test key of RFC 8032, section 7.1, as PKCS#8.
        let seed = "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60";
        let der = format!("302e020100300506032b657004220420{seed}");
        let der: Vec<u8> = (0..der.len()).step_by(2).map(|i| u8::from_str_radix(&der[i..i + 2], 16).unwrap()).collect();
        let private = EncodingKey::from_ed_der(&der);
        let public = Verifier::with_public_key(include_bytes!("../tests/keys/ed25519.pub.pem")).unwrap();
        let token = encode(&Header::new(Algorithm::EdDSA), &claims, &private).unwrap();
        assert_eq!(public.verify(&token).unwrap().as_str(), "u");
        // The classic attack: the public key used as a shared secret.
        let pem = include_bytes!("../tests/keys/ed25519.pub.pem");
        let forged = encode(&Header::default(), &claims, &EncodingKey::from_secret(pem).unwrap()).unwrap();
        assert_eq!(public.verify(&forged), Err(Unauthorized::Invalid));
        assert!(Verifier::with_public_key(b"no key").is_none());
        for (pem, algorithm) in [
            (&include_bytes!("../tests/keys/rsa.pub.pem")[..], Algorithm::RS256),
            (&include_bytes!("../tests/keys/p256.pub.pem")[..], Algorithm::ES256),
        ] {
            assert_eq!(Verifier::with_public_key(pem).unwrap().validation.algorithms, [algorithm]);
        }
    }
}
