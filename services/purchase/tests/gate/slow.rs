//! Clients that take their time: each way of it ends within the service's bound, and holds up nobody else.

use std::time::{Duration, Instant};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
};

use crate::shop::{PATIENCE, Shop, on_sale};

/// The service's own bounds are 10 s for a body and 30 s for a head, for idling and for taking an answer.
const BODY_BOUND: Duration = Duration::from_secs(10);
const BOUND: Duration = Duration::from_secs(30);

/// What a busy machine may add.
const SLACK: Duration = Duration::from_secs(20);

/// Between two bytes of somebody who trickles.
const DRIP: Duration = Duration::from_millis(200);

/// Writes a byte now and then, over and over, until the service closes the connection; gives the answer and the time that took.
async fn trickle(mut stream: TcpStream, byte: u8) -> (String, Duration) {
    let started = Instant::now();
    let mut answer = Vec::new();
    let mut drip = tokio::time::interval(DRIP);
    let (mut reading, mut writing) = stream.split();
    let drip = async {
        loop {
            drip.tick().await;
            if writing.write_all(&[byte]).await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    };
    tokio::select! {
        _ = reading.read_to_end(&mut answer) => {}
        () = drip => {}
        () = tokio::time::sleep(BOUND + SLACK) => panic!("the connection is still open"),
    }
    (String::from_utf8_lossy(&answer).into_owned(), started.elapsed())
}

async fn connect(shop: &Shop, start: &str) -> TcpStream {
    let mut stream = TcpStream::connect(shop.address).await.unwrap();
    stream.write_all(start.as_bytes()).await.unwrap();
    stream
}

/// Asks again and again without reading an answer, until the service gives up.
async fn never_reads(shop: &Shop) -> Duration {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4 * 1024).unwrap();
    let mut stream = socket.connect(shop.address).await.unwrap();
    let requests = "GET /nothing HTTP/1.1\r\nHost: shop\r\n\r\n".repeat(50);
    let mut last_taken = Instant::now();
    let asking = async {
        while stream.write_all(requests.as_bytes()).await.is_ok() {
            last_taken = Instant::now();
        }
    };
    tokio::time::timeout(PATIENCE + BOUND + SLACK, asking).await.expect("the service gives up");
    last_taken.elapsed()
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_is_slow_is_left_within_the_bound_and_holds_up_nobody() {
    // The bound on purchases at once must not be what the slow ones fill.
    let (_world, store, voucher, shop) = on_sale(1_000, 1, &[("DOORBUSTER_PURCHASE_MAX_IN_FLIGHT", "8")]).await;
    let line = format!("POST /v1/vouchers/{voucher}/orders HTTP/1.1\r\nHost: shop\r\n");
    let with_body = |user: &str, rest: &str| format!("{line}Authorization: Bearer {}\r\n{rest}\r\n\r\n", shop.token(user));
    let many = |start: &str, byte: u8| {
        let (shop, start) = (&shop, start.to_owned());
        futures::future::join_all((0..20).map(move |_| {
            let start = start.clone();
            async move { trickle(connect(shop, &start).await, byte).await }
        }))
    };
    let heads = many(&format!("{line}X: "), b'a');
    let silent = async {
        let started = Instant::now();
        let mut stream = connect(&shop, "").await;
        let read = tokio::time::timeout(BOUND + SLACK, stream.read_to_end(&mut Vec::new())).await;
        let _ = read.expect("an idle connection is closed");
        started.elapsed()
    };
    let lengths = many(&with_body("slow-length", "Content-Length: 1000"), b' ');
    let chunk_heads = many(&with_body("slow-chunk", "Transfer-Encoding: chunked"), b'0');
    let buyers = async {
        let started = Instant::now();
        for buyer in 0.. {
            shop.buy(&voucher, &format!("quick-{buyer}"), None, 1).await.order_id();
            if started.elapsed() > BOUND {
                return buyer + 1;
            }
            tokio::time::sleep(DRIP).await;
        }
        unreachable!("it ends by time");
    };
    let (heads, silent, lengths, chunk_heads, unread, bought) =
        tokio::join!(heads, silent, lengths, chunk_heads, never_reads(&shop), buyers);

    for (answer, took) in heads {
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 408"), "{answer}");
        assert!((BOUND / 2..BOUND + SLACK).contains(&took), "a trickled head took {took:?}");
    }
    assert!(silent < BOUND + SLACK, "an idle connection lived for {silent:?}");
    for (answer, took) in lengths {
        assert!(answer.starts_with("HTTP/1.1 408") && answer.contains("too_slow"), "{answer}");
        assert!((BODY_BOUND / 2..BODY_BOUND + SLACK).contains(&took), "a trickled body took {took:?}");
    }
    for (answer, took) in chunk_heads {
        assert!(answer.starts_with("HTTP/1.1 408") || answer.starts_with("HTTP/1.1 400"), "{answer}");
        assert!(took < BODY_BOUND + SLACK, "a trickled chunk took {took:?}");
    }
    assert!(unread < BOUND + SLACK, "unread answers were kept for {unread:?}");
    let held = store.held(&voucher).await.unwrap();
    assert_eq!(held.len(), bought, "{held:?}");
    assert!(held.iter().all(|(user, _)| user.as_str().starts_with("quick-")), "{held:?}");
}
