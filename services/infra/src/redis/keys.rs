//! The keys of one voucher: the one place that spells them.
//!
//! All three share the hash tag `{v:<voucher id>}`, so they lie together in a cluster and one script may use them all. A voucher id
//! cannot contain a brace, so it cannot break the tag.

use domain::VoucherId;

/// The names of one voucher's three keys, in the order in which every script takes them.
pub(super) struct Keys {
    /// Hash: the voucher.
    pub(super) voucher: String,
    /// Hash: order id -> its reservation; only orders in flight.
    pub(super) reservations: String,
    /// Hash: user id -> units reserved or sold.
    pub(super) held: String,
}

impl Keys {
    /// The pattern of every voucher's hash, for SCAN.
    pub(super) const ANY_VOUCHER: &str = "{v:*}:voucher";

    /// The voucher whose hash has this name; `None`: somebody else's key.
    pub(super) fn id_of(key: &str) -> Option<VoucherId> {
        VoucherId::parse(key.strip_prefix("{v:")?.strip_suffix("}:voucher")?).ok()
    }

    pub(super) fn of(voucher: &VoucherId) -> Self {
        let tag = format!("{{v:{voucher}}}");
        Self { voucher: format!("{tag}:voucher"), reservations: format!("{tag}:reservations"), held: format!("{tag}:held") }
    }

    pub(super) fn all(&self) -> [&str; 3] {
        [&self.voucher, &self.reservations, &self.held]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_keys_of_a_voucher_share_its_tag() {
        let keys = Keys::of(&VoucherId::parse("sale:2026_v1.0-A").unwrap());
        let expected = ["{v:sale:2026_v1.0-A}:voucher", "{v:sale:2026_v1.0-A}:reservations", "{v:sale:2026_v1.0-A}:held"];
        assert_eq!(keys.all(), expected);
        assert_eq!(Keys::id_of(&keys.voucher).unwrap().as_str(), "sale:2026_v1.0-A");
        assert_eq!([&keys.held, "{v:}:voucher", "{v:a b}:voucher"].map(Keys::id_of), [None, None, None]);
    }
}
