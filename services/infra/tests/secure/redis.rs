use devstack::redis::{RedisOptions, start};
use infra::redis::Store;

use crate::{Authority, PATIENCE, assert_names};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_over_tls_with_a_password() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let server = start(RedisOptions { secured: Some(authority.secured()), ..RedisOptions::default() }).expect("Redis starts");
    let (address, ca) = (server.endpoint(), authority.file());
    // A busy machine may take longer than a buyer would wait.
    let connect = async |address: &str| loop {
        match Store::connect(address).await {
            Err(error) if error.to_string().contains("timed out") => {}
            other => break other,
        }
    };
    let store = connect(&format!("{address}?ca={ca}")).await.expect("the right settings get in");
    testkit::wait_until_async(PATIENCE, "an answer", async || store.ping().await.is_ok()).await;

    let refusal = async |address: &str| connect(address).await.err().map(|error| error.to_string()).unwrap_or_default();
    let wrong_password = address.replace("hunter2", "wrong-one");
    let text = refusal(&format!("{wrong_password}?ca={ca}")).await;
    assert_names(&text, &["DOORBUSTER_REDIS", "password"]);
    for address in [format!("{address}?ca={}", stranger.file()), address.to_owned()] {
        assert_names(&refusal(&address).await, &["DOORBUSTER_REDIS", "ca=FILE", "certificate"]);
    }
    assert_names(&refusal(&address.replace("rediss:", "redis:")).await, &["DOORBUSTER_REDIS", "TLS"]);
    assert_names(&refusal(&format!("{address}?ca=/nowhere.pem")).await, &["DOORBUSTER_REDIS", "/nowhere.pem"]);
}
