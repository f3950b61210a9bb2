//! Addresses with a parameter of ours in them: the file with a server's own certificate authorities.

/// Takes `name=value` out of a URL's query. The value is taken as it is written, without percent signs undone.
pub(crate) fn take_parameter(url: &str, name: &str) -> (String, Option<String>) {
    // A password may hold a question mark.
    let host = url.rfind('@').unwrap_or(0);
    let Some(mark) = url[host..].find('?') else { return (url.to_owned(), None) };
    let (base, query) = (&url[..host + mark], &url[host + mark + 1..]);
    let of = |pair: &str| pair.strip_prefix(name)?.strip_prefix('=').map(str::to_owned);
    let found = query.split('&').find_map(of);
    let rest: Vec<&str> = query.split('&').filter(|pair| of(pair).is_none()).collect();
    let rest = if rest.is_empty() { base.to_owned() } else { format!("{base}?{}", rest.join("&")) };
    (rest, found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_parameter_is_taken_and_the_rest_stays() {
        let cases = [
            ("rediss://h:1", "rediss://h:1", None),
            ("rediss://h:1?ca=/a.pem", "rediss://h:1", Some("/a.pem")),
            ("rediss://u:p?ca=x@h:1/2?protocol=resp3&ca=/a=b.pem", "rediss://u:p?ca=x@h:1/2?protocol=resp3", Some("/a=b.pem")),
            ("rediss://h?xca=1&ca=/a&y=2", "rediss://h?xca=1&y=2", Some("/a")),
        ];
        for (url, rest, value) in cases {
            assert_eq!(take_parameter(url, "ca"), (rest.to_owned(), value.map(str::to_owned)), "{url}");
        }
    }
}
