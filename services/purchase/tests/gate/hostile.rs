//! Bytes that no honest client sends: two readings of one request, heads and bodies without measure, tricks in paths, tokens and names.

use std::time::Duration;

use base64::{
    Engine,
    prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD},
};
use infra::redis::Store;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use serde_json::json;
use testkit::wait_until;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::shop::{PATIENCE, Shop, asked_for, on_sale};

/// Sends the bytes, then closes the writing half, and gives everything that comes back until the service closes the connection.
async fn exchange(shop: &Shop, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(shop.address).await.unwrap();
    // The service may refuse, and close, before it has read everything.
    let _ = stream.write_all(bytes).await;
    let _ = stream.shutdown().await;
    until_closed(&mut stream).await
}

/// What arrives until the service closes the connection.
async fn until_closed(stream: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    let read = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await;
    // A reset, as for bytes that were never read, is an end too.
    let _ = read.expect("the service closes the connection");
    String::from_utf8_lossy(&answer).into_owned()
}

/// The statuses of the answers, in order.
fn statuses(answers: &str) -> Vec<u16> {
    answers.split("HTTP/1.1 ").skip(1).filter_map(|answer| answer.get(..3)?.parse().ok()).collect()
}

/// The head of a purchase by `user` up to its last header; the blank line is the caller's.
fn head(shop: &Shop, voucher: impl std::fmt::Display, user: &str) -> String {
    let token = shop.token(user);
    format!("POST /v1/vouchers/{voucher}/orders HTTP/1.1\r\nHost: shop\r\nAuthorization: Bearer {token}\r\n")
}

async fn holders(store: &Store, voucher: &domain::VoucherId) -> Vec<String> {
    let mut held: Vec<_> = store.held(voucher).await.unwrap().into_iter().map(|(user, _)| user.as_str().to_owned()).collect();
    held.sort();
    held
}

/// Whatever a proxy in front takes for the body of the first request is never read as a second one; where two readings of the length are
/// possible, the connection ends with the answer.
#[tokio::test(flavor = "multi_thread")]
async fn no_request_hides_in_the_body_of_another() {
    let (world, store, voucher, shop) = on_sale(100, 1, &[]).await;
    let hidden = format!("{}Content-Length: 0\r\n\r\n", head(&shop, &voucher, "hidden"));
    let chunked = format!("0\r\n\r\n{hidden}");
    let refused = [
        ("two lengths", format!("Content-Length: 0\r\nContent-Length: {}\r\n\r\n{hidden}", hidden.len())),
        ("a list of lengths", format!("Content-Length: 0, {}\r\n\r\n{hidden}", hidden.len())),
        ("a signed length", format!("Content-Length: +0\r\n\r\n{hidden}")),
        ("a negative length", format!("Content-Length: -1\r\n\r\n{hidden}")),
        ("a length in hexadecimal", format!("Content-Length: 0x0\r\n\r\n{hidden}")),
        ("a length beyond 64 bits", format!("Content-Length: 18446744073709551616\r\n\r\n{hidden}")),
        ("an unknown coding", format!("Transfer-Encoding: xchunked\r\n\r\n{chunked}")),
        ("a coding that is not the last", format!("Transfer-Encoding: chunked, identity\r\n\r\n{chunked}")),
        ("a space before the colon", format!("Transfer-Encoding : chunked\r\n\r\n{chunked}")),
        ("a folded line", format!("Content-Length: 0\r\nX-Folded: a\r\n Transfer-Encoding: chunked\r\n\r\n{chunked}")),
        ("a line that begins with a space", format!(" Content-Length: 0\r\n\r\n{hidden}")),
        ("a carriage return alone", format!("Content-Length: 0\r\nX: a\rTransfer-Encoding: chunked\r\n\r\n{chunked}")),
        ("a NUL in a value", format!("X: a\0b\r\nContent-Length: 0\r\n\r\n{hidden}")),
        ("a name that is none", format!("Content\u{b}Length: 0\r\n\r\n{hidden}")),
        ("a chunk's size with a sign", format!("Transfer-Encoding: chunked\r\n\r\n+0\r\n\r\n{hidden}")),
        ("a chunk's size with a prefix", format!("Transfer-Encoding: chunked\r\n\r\n0x0\r\n\r\n{hidden}")),
        ("a chunk's size beyond 64 bits", format!("Transfer-Encoding: chunked\r\n\r\n10000000000000000\r\n{hidden}")),
        ("a line feed inside a chunk's extension", format!("Transfer-Encoding: chunked\r\n\r\n0;x\n\r\n\r\n{hidden}")),
        ("a chunk that is longer than its size", format!("Transfer-Encoding: chunked\r\n\r\n2\r\n{{}}x\r\n0\r\n\r\n{hidden}")),
    ];
    for (name, rest) in refused {
        let answers = exchange(&shop, format!("{}{rest}", head(&shop, &voucher, "first")).as_bytes()).await;
        assert_eq!(statuses(&answers), [400], "{name}: {answers}");
    }
    assert_eq!(holders(&store, &voucher).await, [""; 0]);

    // The coding overrides the length (RFC 9112, section 6.3), and nothing else is read from such a connection.
    for (user, lengths) in [("length-first", ["Content-Length: 4\r\n", ""]), ("coding-first", ["", "Content-Length: 4\r\n"])] {
        let [before, after] = lengths;
        let rest = format!("{before}Transfer-Encoding: chunked\r\n{after}\r\n{chunked}");
        let answers = exchange(&shop, format!("{}{rest}", head(&shop, &voucher, user)).as_bytes()).await;
        assert_eq!(statuses(&answers), [202], "{user}: {answers}");
        assert!(answers.to_ascii_lowercase().contains("connection: close\r\n"), "{user}: {answers}");
    }
    // HTTP/1.0 knows no codings.
    let old = head(&shop, &voucher, "old").replace("HTTP/1.1", "HTTP/1.0");
    let answers = exchange(&shop, format!("{old}Transfer-Encoding: chunked\r\n\r\n{chunked}").as_bytes()).await;
    assert_eq!(statuses(&answers.replace("HTTP/1.0", "HTTP/1.1")), [400], "{answers}");
    // A body that was announced is never read as a request, also where it is not wanted.
    let unwanted = format!("{}Content-Length: {}\r\n\r\n{hidden}", head(&shop, &voucher, "x"), hidden.len());
    assert_eq!(statuses(&exchange(&shop, unwanted.as_bytes()).await), [400]);
    let read = format!("GET /v1/vouchers/{voucher} HTTP/1.1\r\nHost: shop\r\nContent-Length: {}\r\n\r\n{hidden}", hidden.len());
    assert_eq!(statuses(&exchange(&shop, read.as_bytes()).await), [200]);
    let bold =
        format!("POST /v1/vouchers/{voucher}/orders HTTP/1.1\r\nHost: shop\r\nContent-Length: {}\r\n\r\n{hidden}", hidden.len());
    assert_eq!(statuses(&exchange(&shop, bold.as_bytes()).await), [401]);

    // Two honest requests in a row on one connection are two: the sentinel that shows that hidden ones would have been seen.
    let two = ["one", "two"].map(|user| format!("{}Content-Length: 0\r\n\r\n", head(&shop, &voucher, user)));
    assert_eq!(statuses(&exchange(&shop, two.concat().as_bytes()).await), [202, 202]);
    assert_eq!(holders(&store, &voucher).await, ["coding-first", "length-first", "one", "two"]);
    wait_until(PATIENCE, "the requests in the log", || asked_for(&world, &voucher).len() == 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn heads_without_measure_are_refused() {
    let (_world, store, voucher, shop) = on_sale(10, 1, &[]).await;
    let many: String = (0..500).map(|i| format!("X-{i}: a\r\n")).collect();
    let long = format!("X: {}\r\n", "a".repeat(20 * 1024));
    let name = format!("{}: a\r\n", "X".repeat(20 * 1024));
    for (what, headers) in [("many headers", &many), ("a long value", &long), ("a long name", &name)] {
        let answers = exchange(&shop, format!("{}{headers}\r\n", head(&shop, &voucher, "u")).as_bytes()).await;
        assert!(matches!(statuses(&answers)[..], [431] | []), "{what}: {answers}");
    }
    let path = "a".repeat(14 * 1024);
    let answers = exchange(&shop, head(&shop, &path, "u").replace("/orders", "/orders\r\n\r\n").as_bytes()).await;
    assert!(!statuses(&answers).contains(&202), "{answers}");
    // A head that never ends: the service stops reading long before a MiB.
    let mut stream = TcpStream::connect(shop.address).await.unwrap();
    let mut sent = 0_usize;
    let line = format!("X: {}\r\n", "a".repeat(1_000));
    stream.write_all(head(&shop, &voucher, "u").as_bytes()).await.unwrap();
    let flood = async {
        while sent < 64 << 20 && stream.write_all(line.as_bytes()).await.is_ok() {
            sent += line.len();
        }
    };
    tokio::time::timeout(PATIENCE, flood).await.expect("the service closes the connection");
    assert!(sent < 64 << 20, "{sent} bytes of one head were taken");
    assert_eq!(holders(&store, &voucher).await, [""; 0]);
    shop.buy(&voucher, "u", None, 1).await.order_id();
}

/// A body is bounded by what is read, not by what is announced.
#[tokio::test(flavor = "multi_thread")]
async fn bodies_without_measure_are_refused_at_their_bound() {
    let (_world, store, voucher, shop) = on_sale(10, 1, &[]).await;
    let head = |user: &str| head(&shop, &voucher, user);
    // Announced and never sent: nothing is set aside for it, and a buyer who is not known is answered without it.
    let announced = "Content-Length: 9000000000000000000\r\n\r\n";
    let stranger = format!("POST /v1/vouchers/{voucher}/orders HTTP/1.1\r\nHost: shop\r\n{announced}");
    let mut stream = TcpStream::connect(shop.address).await.unwrap();
    stream.write_all(stranger.as_bytes()).await.unwrap();
    assert_eq!(statuses(&until_closed(&mut stream).await), [401]);
    // Sent without end.
    let chunk = format!("400\r\n{}\r\n", " ".repeat(0x400));
    let tiny = "1\r\n \r\n".to_owned();
    let extended = format!("1;{}\r\n \r\n", "e".repeat(200));
    for (what, start, part) in [
        ("a length", announced, &" ".repeat(0x400)),
        ("chunks", "Transfer-Encoding: chunked\r\n\r\n", &chunk),
        ("tiny chunks", "Transfer-Encoding: chunked\r\n\r\n", &tiny),
        ("chunks with extensions", "Transfer-Encoding: chunked\r\n\r\n", &extended),
    ] {
        let mut stream = TcpStream::connect(shop.address).await.unwrap();
        stream.write_all(format!("{}{start}", head("u")).as_bytes()).await.unwrap();
        let (mut reading, mut writing) = stream.into_split();
        let bomb = async {
            let parts = part.repeat(64);
            let mut sent = 0;
            while sent < 64 << 20 && writing.write_all(parts.as_bytes()).await.is_ok() {
                sent += parts.len();
            }
            sent
        };
        let mut first = vec![0; 12];
        let (sent, answer) = tokio::time::timeout(PATIENCE, async { tokio::join!(bomb, reading.read_exact(&mut first)) })
            .await
            .expect("the service closes the connection");
        assert!(sent < 64 << 20, "{what}: {sent} bytes of one body were taken");
        // The answer can be lost in the reset that follows bytes nobody read.
        assert!(
            answer.is_err() || first == b"HTTP/1.1 413" || first == b"HTTP/1.1 400",
            "{what}: {}",
            String::from_utf8_lossy(&first)
        );
    }
    // Trailers without end.
    let trailers: String = (0..10_000).map(|i| format!("X-{i}: a\r\n")).collect();
    let bomb = format!("{}Transfer-Encoding: chunked\r\n\r\n2\r\n{{}}\r\n0\r\n{trailers}\r\n", head("trailing"));
    assert!(!statuses(&exchange(&shop, bomb.as_bytes()).await).contains(&202));
    assert_eq!(holders(&store, &voucher).await, [""; 0]);
    shop.buy(&voucher, "u", None, 1).await.order_id();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_path_names_one_voucher_or_none() {
    let (world, store, voucher, shop) = on_sale(10, 1, &[]).await;
    let token = shop.token("u");
    let order = world.order_id(&voucher, "u", None);
    // None of these is the voucher, whatever they become where a path is tidied up.
    for (path, status) in [
        ("/v1/vouchers//orders".to_owned(), 400),
        (format!("/v1/vouchers/./{voucher}/orders"), 404),
        (format!("/v1/vouchers/x/../{voucher}/orders"), 404),
        (format!("/v1/vouchers/x/..%2f{voucher}/orders"), 404),
        (format!("/v1//vouchers/{voucher}/orders"), 404),
        (format!("/v1/vouchers/{voucher}/orders/"), 404),
        (format!("//v1/vouchers/{voucher}/orders"), 404),
        (format!("/V1/vouchers/{voucher}/orders"), 404),
        (format!("/v1/vouchers/{voucher}%2forders"), 405),
        (format!("/v1/vouchers/{voucher}%2f..%2fy/orders"), 400),
        (format!("/v1/vouchers/{voucher}%00/orders"), 400),
        (format!("/v1/vouchers/{voucher}%0d%0aX:%20y/orders"), 400),
        (format!("/v1/vouchers/{voucher}%20/orders"), 400),
        (format!("/v1/vouchers/{voucher}%7D:held/orders"), 400),
        (format!("/v1/vouchers/{voucher};a=b/orders"), 400),
        (format!("/v1/vouchers/{voucher}%EF%BC%8E/orders"), 400),
        (format!("/v1/vouchers/{voucher}%E2%80%AE/orders"), 400),
        (format!("/v1/vouchers/{voucher}%c0%ae/orders"), 400),
        (format!("/v1/vouchers/{voucher}%/orders"), 400),
        (format!("/v1/vouchers/{voucher}%zz/orders"), 400),
        (format!("/v1/vouchers/{voucher}/orders\0"), 400),
        (format!("v1/vouchers/{voucher}/orders"), 400),
    ] {
        let request = format!("POST {path} HTTP/1.1\r\nHost: shop\r\nAuthorization: Bearer {token}\r\nContent-Length: 0\r\n\r\n");
        let answers = exchange(&shop, request.as_bytes()).await;
        assert_eq!(statuses(&answers), [status], "{path}: {answers}");
    }
    for path in [format!("..%2f{order}"), format!("{order}%00"), format!("%7B{order}%7D"), order.to_string().replace('-', "")] {
        let reply = shop.send(shop.get(&format!("{voucher}/orders/{path}")).bearer_auth(&token)).await;
        reply.assert_problem(400, "malformed");
    }
    // Names that mean something in a file system are ids as any other: there is no such voucher.
    for name in ["..%2e", "%2e%2e%2e", "-", ":", "con"] {
        let request = format!("GET /v1/vouchers/{name} HTTP/1.1\r\nHost: shop\r\n\r\n");
        let answers = exchange(&shop, request.as_bytes()).await;
        assert_eq!(statuses(&answers), [404], "{name}: {answers}");
        assert!(answers.contains("unknown_voucher"), "{name}: {answers}");
    }
    assert_eq!(store.voucher(&voucher).await.unwrap().unwrap().stock, 10);
    // An encoded letter is that letter.
    let encoded = format!("%{:02x}{}", voucher.as_str().as_bytes()[0], &voucher.as_str()[1..]);
    let request = format!("{}Content-Length: 0\r\n\r\n", head(&shop, encoded, "u"));
    assert_eq!(statuses(&exchange(&shop, request.as_bytes()).await), [202]);
    assert_eq!(holders(&store, &voucher).await, ["u"]);
}

/// Names with a meaning in Redis keys, Lua, SQL or a log are names like any other, or refused whole.
#[tokio::test(flavor = "multi_thread")]
async fn a_users_name_is_text_and_nothing_else() {
    let (world, store, voucher, shop) = on_sale(100, 1, &[]).await;
    let mut taken = vec![
        format!("{{v:{voucher}}}:voucher"),
        "}:held".to_owned(),
        "{}".to_owned(),
        "a' OR '1'='1'; DROP TABLE orders; --".to_owned(),
        "return redis.call('FLUSHALL')".to_owned(),
        "%s%n${jndi:ldap://x}".to_owned(),
        "*3\\r\\n$8\\r\\nFLUSHALL".to_owned(),
        "ß".repeat(64),
    ];
    for user in &taken {
        let order = shop.buy(&voucher, user, None, 1).await.order_id();
        assert_eq!(order, world.order_id(&voucher, user, None));
    }
    for user in [
        "",
        "a\nb",
        "a\r\nlevel=error b",
        "a\tb",
        "\u{1b}[2J",
        "\u{7f}",
        "\u{9b}31m",
        "\u{0}",
        &"a".repeat(129),
        &"a".repeat(10_240),
    ] {
        let reply = shop.buy_once(&voucher, user, None, 1).await;
        assert_eq!(reply.status, 401, "{user:?}: {reply:?}");
    }
    taken.sort();
    assert_eq!(holders(&store, &voucher).await, taken);
    let found = store.voucher(&voucher).await.unwrap().unwrap();
    assert_eq!((found.stock, found.reserved), (92, 8));
    wait_until(PATIENCE, "the requests in the log", || asked_for(&world, &voucher).len() == taken.len());
    let mut asked: Vec<_> = asked_for(&world, &voucher).into_iter().map(|(_, user, _)| user).collect();
    asked.sort();
    assert_eq!(asked, taken);
}

/// With a public key configured, a token is good only if its private half signed it, in its own algorithm.
#[tokio::test(flavor = "multi_thread")]
async fn a_public_key_is_no_secret_to_sign_with() {
    let pem = include_bytes!("../keys/rsa.pub.pem");
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/keys/rsa.pub.pem");
    let vars = [("DOORBUSTER_JWT_SECRET", ""), ("DOORBUSTER_JWT_PUBLIC_KEY", path)];
    let (_world, store, voucher, shop) = on_sale(10, 1, &vars).await;
    let claims = json!({"sub": "u", "exp": jsonwebtoken::get_current_timestamp() + 60});
    let der: Vec<u8> = {
        let body: String = std::str::from_utf8(pem).unwrap().lines().filter(|line| !line.starts_with('-')).collect();
        BASE64_STANDARD.decode(body).unwrap()
    };
    let secrets: [&[u8]; 3] = [pem, pem.trim_ascii_end(), &der];
    let mut tokens = Vec::new();
    for secret in secrets {
        for algorithm in [Algorithm::HS256, Algorithm::HS384, Algorithm::HS512] {
            tokens.push(encode(&Header::new(algorithm), &claims, &EncodingKey::from_secret(secret).unwrap()).unwrap());
        }
    }
    let first = tokens[0].clone();
    let [_, payload, signature] = first.split('.').collect::<Vec<_>>().try_into().unwrap();
    for header in [
        json!({"alg": "none"}),
        json!({"alg": "None", "typ": "JWT"}),
        json!({"alg": "NONE"}),
        json!({"alg": ""}),
        json!({"alg": "RS256"}),
        json!({"alg": "rs256"}),
        json!({"alg": "RS1"}),
        json!({"alg": null}),
        json!({"alg": ["RS256"]}),
        json!({}),
        json!({"alg": "RS256", "jwk": {"kty": "oct", "k": "AAAA"}, "kid": "../../dev/null", "jku": "http://127.0.0.1:1/"}),
        json!({"alg": "RS256", "crit": ["x"]}),
    ] {
        let header = BASE64_URL_SAFE_NO_PAD.encode(header.to_string());
        tokens.extend([format!("{header}.{payload}."), format!("{header}.{payload}"), format!("{header}.{payload}.{signature}")]);
    }
    for token in tokens {
        let request = format!(
            "POST /v1/vouchers/{voucher}/orders HTTP/1.1\r\nHost: shop\r\nAuthorization: Bearer {token}\r\nContent-Length: 0\r\n\r\n"
        );
        assert_eq!(statuses(&exchange(&shop, request.as_bytes()).await), [401], "{token}");
    }
    assert_eq!(store.voucher(&voucher).await.unwrap().unwrap().stock, 10);
}

/// Small skew either way passes, large does not; claims of a wrong type are refused, unknown ones are not looked at.
#[tokio::test(flavor = "multi_thread")]
async fn claims_are_read_as_what_they_are() {
    let (_world, store, voucher, shop) = on_sale(100, 100, &[]).await;
    let now = i64::try_from(jsonwebtoken::get_current_timestamp()).unwrap();
    let with = |more: serde_json::Value| {
        let mut claims = json!({"sub": "u", "exp": now + 600});
        claims.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        shop.sign(&claims)
    };
    let send = async |token: String| {
        let client = reqwest::Client::builder().timeout(Duration::from_secs(20)).build().unwrap();
        shop.send(client.post(format!("{}/v1/vouchers/{voucher}/orders", shop.http)).bearer_auth(token)).await.status.as_u16()
    };
    for good in [
        json!({"exp": now - 5}),
        json!({"nbf": now + 5}),
        json!({"iat": now + 5}),
        json!({"iat": now - 1_000_000}),
        json!({"aud": "anybody", "iss": "somebody", "role": "admin"}),
        json!({"sub": "{u}"}),
    ] {
        assert_eq!(send(with(good.clone())).await, 202, "{good}");
    }
    for bad in [
        json!({"exp": now - 120}),
        json!({"exp": -1}),
        json!({"exp": "9999999999"}),
        json!({"exp": true}),
        json!({"exp": null}),
        json!({"exp": {}}),
        json!({"nbf": now + 120}),
        json!({"nbf": "soon"}),
        json!({"iat": now + 120}),
        json!({"iat": "now"}),
        json!({"iat": 1e308}),
        json!({"sub": 7}),
        json!({"sub": null}),
        json!({"sub": ["u"]}),
        json!({"sub": {"u": 1}}),
    ] {
        assert_eq!(send(with(bad.clone())).await, 401, "{bad}");
    }
    assert_eq!(holders(&store, &voucher).await, ["u", "{u}"]);
}
