//! Each mode of the proxy against a server that sends back what it gets.

use std::{
    io::{ErrorKind, Read, Write},
    net::{TcpListener, TcpStream},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use testkit::{Mode, Proxy};

/// For something that must arrive, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(10);
/// For something that must not. What arrives later than this is noticed by what is read next.
const MOMENT: Duration = Duration::from_millis(100);

/// Sends back everything behind `prefix`, and tells what it got.
fn echo(prefix: &'static str) -> (u16, mpsc::Receiver<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (got, seen) = mpsc::channel();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, got) = (stream.unwrap(), got.clone());
            thread::spawn(move || {
                let mut buffer = [0; 4096];
                while let Ok(count @ 1..) = stream.read(&mut buffer) {
                    let _ = got.send(buffer[..count].to_vec());
                    if stream.write_all(&[prefix.as_bytes(), &buffer[..count]].concat()).is_err() {
                        return;
                    }
                }
            });
        }
    });
    (port, seen)
}

fn connect(proxy: &Proxy) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", proxy.port())).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn ask(stream: &mut TcpStream, text: &str) -> std::io::Result<String> {
    stream.write_all(text.as_bytes())?;
    read(stream, text.len())
}

fn read(stream: &mut TcpStream, count: usize) -> std::io::Result<String> {
    let mut answer = vec![0; count];
    stream.read_exact(&mut answer)?;
    Ok(String::from_utf8(answer).unwrap())
}

fn assert_nothing_arrives(stream: &mut TcpStream) {
    stream.set_read_timeout(Some(MOMENT)).unwrap();
    let error = stream.read(&mut [0]).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}");
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
}

fn assert_reset(mut stream: TcpStream) {
    assert_eq!(stream.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[test]
fn open_passes_everything_and_an_end_is_an_end() {
    let proxy = Proxy::to(echo("").0).unwrap();
    let mut stream = connect(&proxy);
    assert_eq!(ask(&mut stream, "hello").unwrap(), "hello");
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
}

#[test]
fn refuse_resets_what_is_there_and_what_comes() {
    let proxy = Proxy::to(echo("").0).unwrap();
    let mut before = connect(&proxy);
    ask(&mut before, "hello").unwrap();
    proxy.set(Mode::Refuse);
    assert_reset(before);
    assert_reset(connect(&proxy));
    proxy.set(Mode::Open);
    assert_eq!(ask(&mut connect(&proxy), "again").unwrap(), "again");
}

#[test]
fn without_a_target_or_with_nobody_there_connections_are_reset() {
    let proxy = Proxy::start().unwrap();
    assert_reset(connect(&proxy));
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    proxy.set_target(nobody);
    assert_reset(connect(&proxy));
}

#[test]
fn silent_loses_both_directions_keeps_the_connection_and_resets_it_at_the_end() {
    let (port, seen) = echo("");
    let proxy = Proxy::to(port).unwrap();
    let mut used = connect(&proxy);
    let mut unused = connect(&proxy);
    ask(&mut used, "a").unwrap();
    ask(&mut unused, "b").unwrap();
    proxy.set(Mode::Silent);
    used.write_all(b"lost").unwrap();
    assert_nothing_arrives(&mut used);
    proxy.set(Mode::Open);
    assert_reset(used);
    assert_eq!(ask(&mut unused, "c").unwrap(), "c", "a connection that lost nothing goes on");
    assert_eq!(seen.try_iter().collect::<Vec<_>>().concat(), b"abc");
}

#[test]
fn hold_lets_everything_arrive_late() {
    let (port, seen) = echo("");
    let proxy = Proxy::to(port).unwrap();
    let mut stream = connect(&proxy);
    ask(&mut stream, "a").unwrap();
    proxy.set(Mode::Hold);
    let mut new = connect(&proxy);
    stream.write_all(b"late").unwrap();
    new.write_all(b"too").unwrap();
    assert_nothing_arrives(&mut stream);
    assert_eq!(seen.try_iter().count(), 1);
    proxy.set(Mode::Open);
    assert_eq!(read(&mut stream, 4).unwrap(), "late");
    assert_eq!(read(&mut new, 3).unwrap(), "too");
}

#[test]
fn dropped_replies_mean_that_requests_arrived() {
    let (port, seen) = echo("");
    let proxy = Proxy::to(port).unwrap();
    proxy.set(Mode::DropReplies);
    let mut stream = connect(&proxy);
    stream.write_all(b"request").unwrap();
    assert_eq!(seen.recv_timeout(PATIENCE).unwrap(), b"request");
    assert_nothing_arrives(&mut stream);
    proxy.set(Mode::Open);
    assert_reset(stream);
}

#[test]
fn delay_and_slow_take_their_time_and_lose_nothing() {
    let proxy = Proxy::to(echo("").0).unwrap();
    let mut stream = connect(&proxy);
    for (mode, text, at_least) in [
        (Mode::Delay(Duration::from_millis(50)), "x".repeat(10), Duration::from_millis(100)),
        // Both directions at once, as soon as the first bytes come back: half a second each, less one piece.
        (Mode::Slow(200), "y".repeat(100), Duration::from_millis(450)),
    ] {
        proxy.set(mode);
        let begun = Instant::now();
        assert_eq!(ask(&mut stream, &text).unwrap(), text);
        assert!(begun.elapsed() >= at_least, "{mode:?}: {:?}", begun.elapsed());
    }
}

#[test]
fn a_cut_resets_present_connections_only_and_a_new_target_gets_the_new_ones() {
    let proxy = Proxy::to(echo("1").0).unwrap();
    let mut first = connect(&proxy);
    first.write_all(b"a").unwrap();
    assert_eq!(read(&mut first, 2).unwrap(), "1a");
    proxy.set_target(echo("2").0);
    first.write_all(b"b").unwrap();
    assert_eq!(read(&mut first, 2).unwrap(), "1b");
    proxy.cut();
    assert_reset(first);
    let mut second = connect(&proxy);
    second.write_all(b"c").unwrap();
    assert_eq!(read(&mut second, 2).unwrap(), "2c");
}
