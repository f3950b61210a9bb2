//! Ids: opaque text everywhere, compared byte by byte, never as numbers.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use uuid::Uuid;

/// Why a text is not the id it was taken for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidId {
    /// A voucher id is 1 to 64 characters of `[A-Za-z0-9._:-]`, other than `.` and `..`, so that it cannot break a Redis hash tag or a path.
    #[error("a voucher id is 1 to 64 characters of A-Z a-z 0-9 . _ : -, but got {0:?}")]
    Voucher(String),
    /// A user id is 1 to 128 bytes of text without control characters.
    #[error("a user id is 1 to 128 bytes of text without control characters")]
    User,
    /// An order id is a UUID in its hyphenated form.
    #[error("an order id is a UUID, but got {0:?}")]
    Order(String),
}

/// Ids are printed as what they hold.
macro_rules! printed {
    ($($id:ident),+) => {$(
        impl fmt::Display for $id {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }

        impl fmt::Debug for $id {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }
    )+};
}
printed!(VoucherId, UserId, OrderId);

/// The name of a voucher: 1 to 64 characters of `[A-Za-z0-9._:-]`, other than `.` and `..`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct VoucherId(String);

impl VoucherId {
    /// The longest id, in bytes.
    pub const MAX_LEN: usize = 64;

    /// Accepts `text` unchanged or refuses it.
    pub fn parse(text: &str) -> Result<Self, InvalidId> {
        let fits = (1..=Self::MAX_LEN).contains(&text.len())
            && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"._:-".contains(&b))
            // Clients and proxies tidy such a part of a path away.
            && ![".", ".."].contains(&text);
        if fits { Ok(Self(text.to_owned())) } else { Err(InvalidId::Voucher(text.chars().take(80).collect())) }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The 48 bits with which every order id of this voucher begins.
    fn prefix(&self) -> [u8; 6] {
        let digest = Sha256::digest(self.0.as_bytes());
        let mut prefix = [0; 6];
        prefix.copy_from_slice(&digest[..6]);
        prefix
    }
}

impl TryFrom<String> for VoucherId {
    type Error = InvalidId;
    fn try_from(text: String) -> Result<Self, InvalidId> {
        Self::parse(&text)
    }
}

impl From<VoucherId> for String {
    fn from(id: VoucherId) -> String {
        id.0
    }
}

/// Who buys. Comes from the token's `sub` at the gate; in the log it can hold any text, which [`crate::decide`] judges.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct UserId(String);

impl UserId {
    /// The longest id, in bytes.
    pub const MAX_LEN: usize = 128;

    /// Accepts what a buyer may be called: 1 to 128 bytes without control characters.
    pub fn parse(text: &str) -> Result<Self, InvalidId> {
        let id = Self(text.to_owned());
        if id.is_valid() { Ok(id) } else { Err(InvalidId::User) }
    }

    /// Takes any text, as found in the log.
    pub fn from_log(text: String) -> Self {
        Self(text)
    }

    /// Whether [`UserId::parse`] would accept this text.
    pub fn is_valid(&self) -> bool {
        (1..=Self::MAX_LEN).contains(&self.0.len()) && !self.0.chars().any(char::is_control)
    }

    /// The same text without what Postgres and logs cannot hold, cut to the longest valid length.
    pub(crate) fn stripped(&self) -> Self {
        let mut text: String = self.0.chars().filter(|c| !c.is_control()).collect();
        text.truncate(text.floor_char_boundary(Self::MAX_LEN));
        Self(text)
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The id of a request record; its maker draws it.
pub type RequestId = Uuid;

/// The id of an order: a UUIDv8 (RFC 9562) whose first 48 bits are the voucher's and whose rest is a keyed digest.
///
/// The same try always has the same id, in every process and after every crash; nobody without the key can compute another's.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct OrderId(Uuid);

impl OrderId {
    /// Reads the hyphenated form.
    pub fn parse(text: &str) -> Result<Self, InvalidId> {
        let refuse = || InvalidId::Order(text.chars().take(80).collect());
        if text.len() != 36 {
            return Err(refuse());
        }
        Uuid::try_parse(text).map(Self).map_err(|_| refuse())
    }

    pub fn from_uuid(uuid: Uuid) -> Self {
        Self(uuid)
    }

    pub fn as_uuid(&self) -> Uuid {
        self.0
    }

    /// Whether this id begins with the 48 bits of `voucher`.
    pub fn belongs_to(&self, voucher: &VoucherId) -> bool {
        self.0.as_bytes()[..6] == voucher.prefix()
    }
}

/// The deployment's key for order ids. All purchase processes of a deployment share it, for as long as its orders live.
#[derive(Clone)]
pub struct OrderKey(Hmac<Sha256>);

impl OrderKey {
    /// The shortest key, in bytes: the length of the digest (RFC 2104 discourages shorter ones).
    pub const MIN_LEN: usize = 32;

    /// `None` if `key` is shorter than [`OrderKey::MIN_LEN`].
    pub fn new(key: &[u8]) -> Option<Self> {
        if key.len() < Self::MIN_LEN {
            return None;
        }
        Hmac::new_from_slice(key).ok().map(Self)
    }

    /// The id of this user's try. Without an idempotency key, (voucher, user) decides: a second order of one user needs one.
    pub fn order_id(&self, voucher: &VoucherId, user: &UserId, idempotency_key: Option<&str>) -> OrderId {
        let mut mac = self.0.clone();
        for part in [voucher.as_str(), user.as_str()].into_iter().chain(idempotency_key) {
            mac.update(&(part.len() as u64).to_be_bytes());
            mac.update(part.as_bytes());
        }
        let digest = mac.finalize().into_bytes();
        let mut bytes = [0; 16];
        bytes[..6].copy_from_slice(&voucher.prefix());
        bytes[6..].copy_from_slice(&digest[..10]);
        OrderId(uuid::Builder::from_custom_bytes(bytes).into_uuid())
    }
}

impl fmt::Debug for OrderKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OrderKey(secret)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> OrderKey {
        OrderKey::new(&[7; 32]).unwrap()
    }

    #[test]
    fn voucher_ids_are_bounded_and_cannot_break_a_hash_tag() {
        assert!(VoucherId::parse(&"x".repeat(64)).is_ok());
        assert!(VoucherId::parse("tickets:2026_v1.0-A").is_ok());
        for bad in ["", ".", "..", "{v}", "a b", "a}", "ä", "a\0", "a/b", &"x".repeat(65)] {
            assert!(VoucherId::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn ids_are_written_and_printed_as_the_text_they_are() {
        let voucher = VoucherId::parse("summer").unwrap();
        assert_eq!(
            (voucher.as_str(), voucher.to_string(), format!("{voucher:?}")),
            ("summer", "summer".into(), "\"summer\"".into())
        );
        assert_eq!(String::from(voucher.clone()), "summer");
        assert_eq!(VoucherId::try_from("summer".to_owned()), Ok(voucher));
        assert!(VoucherId::try_from("{summer}".to_owned()).is_err());
        let user = UserId::parse("Zoë").unwrap();
        assert_eq!((user.to_string(), format!("{user:?}")), ("Zoë".into(), "\"Zoë\"".into()));
        let order = "0198a2b4-5c6d-8e7f-8123-456789abcdef";
        assert_eq!(format!("{:?}", OrderId::parse(order).unwrap()), order);
    }

    #[test]
    fn user_ids_keep_their_bytes_and_refuse_control_characters() {
        for good in ["7", "007", "9007199254740993", "Zoë", &"u".repeat(128)] {
            assert_eq!(UserId::parse(good).unwrap().as_str(), good);
        }
        for bad in ["", "a\0", "a\nb", "\u{85}", &"u".repeat(129)] {
            assert_eq!(UserId::parse(bad), Err(InvalidId::User), "{bad:?}");
        }
    }

    #[test]
    fn stripping_makes_any_text_short_and_printable() {
        assert_eq!(UserId::from_log("a\0b\n".into()).stripped().as_str(), "ab");
        let long = UserId::from_log("ä".repeat(65)).stripped();
        assert_eq!(long.as_str(), "ä".repeat(64));
        let odd = UserId::from_log(format!("a{}", "ä".repeat(64))).stripped();
        assert_eq!(odd.as_str().len(), 127);
    }

    #[test]
    fn the_same_try_has_the_same_id_and_others_differ() {
        let (v, w) = (VoucherId::parse("v").unwrap(), VoucherId::parse("w").unwrap());
        let (a, b) = (UserId::parse("9007199254740992").unwrap(), UserId::parse("9007199254740993").unwrap());
        let id = key().order_id(&v, &a, None);
        assert_eq!(id, key().order_id(&v, &a, None));
        assert_eq!(id.as_uuid().get_version_num(), 8);
        assert_eq!(id.as_uuid().get_variant(), uuid::Variant::RFC4122);
        let others = [
            key().order_id(&v, &b, None),
            key().order_id(&w, &a, None),
            key().order_id(&v, &a, Some("")),
            key().order_id(&v, &a, Some("1")),
            OrderKey::new(&[8; 32]).unwrap().order_id(&v, &a, None),
        ];
        for (i, other) in others.iter().enumerate() {
            assert_ne!(id, *other);
            assert!(others[..i].iter().all(|x| x != other));
        }
    }

    #[test]
    fn lengths_are_part_of_the_digest() {
        let v = VoucherId::parse("v").unwrap();
        let ab = key().order_id(&v, &UserId::parse("ab").unwrap(), Some("c"));
        let a = key().order_id(&v, &UserId::parse("a").unwrap(), Some("bc"));
        assert_ne!(ab, a);
    }

    #[test]
    fn an_order_id_belongs_to_its_voucher_only() {
        let (v, w) = (VoucherId::parse("v").unwrap(), VoucherId::parse("w").unwrap());
        let id = key().order_id(&v, &UserId::parse("u").unwrap(), None);
        assert!(id.belongs_to(&v));
        assert!(!id.belongs_to(&w));
    }

    #[test]
    fn order_ids_parse_only_in_their_own_form() {
        let text = "0198a2b4-5c6d-8e7f-8123-456789abcdef";
        assert_eq!(OrderId::parse(text).unwrap().to_string(), text);
        for bad in ["", "x", "0198a2b45c6d8e7f8123456789abcdef", "{0198a2b4-5c6d-8e7f-8123-456789abcdef}"] {
            assert!(OrderId::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_short_key_is_refused_and_no_key_is_printed() {
        assert!(OrderKey::new(&[1; 31]).is_none());
        assert_eq!(format!("{:?}", key()), "OrderKey(secret)");
    }
}
