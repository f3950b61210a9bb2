use devstack::postgres::{PostgresOptions, start};
use infra::postgres::{migrate, pool, vouchers};

use crate::{Authority, PASSWORD, assert_names, connections};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_over_tls_with_a_password() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let secured = Some(authority.secured());
    let server = start(PostgresOptions { fsync: false, secured, ..PostgresOptions::default() }).expect("Postgres starts");
    let with = |address: &str| connections(&[("DOORBUSTER_POSTGRES", address)]).expect("the settings are complete");
    let (address, ca) = (server.endpoint(), authority.file());

    let right = with(&format!("{address}&sslrootcert={ca}"));
    migrate(&right).await.expect("the right settings get in");
    let pool_of = |connections: &infra::config::Connections| pool(connections, 1);
    assert_eq!(vouchers(&pool_of(&right).expect("a pool"), None).await.expect("so does a pool"), []);

    let wrong_password = address.replace(PASSWORD, "wrong-one");
    let cases = [
        (format!("{wrong_password}&sslrootcert={ca}"), ["DOORBUSTER_POSTGRES", "password"]),
        (format!("{address}&sslrootcert={}", stranger.file()), ["DOORBUSTER_POSTGRES", "sslrootcert"]),
        (address.to_owned(), ["DOORBUSTER_POSTGRES", "sslrootcert"]),
        (address.replace("?sslmode=require", ""), ["DOORBUSTER_POSTGRES", "sslmode"]),
    ];
    for (address, named) in cases {
        let wrong = with(&address);
        assert_names(&migrate(&wrong).await.expect_err("it is refused").to_string(), &named);
        let pooled = vouchers(&pool_of(&wrong).expect("a pool"), None).await;
        assert_names(&pooled.expect_err("so is a pool").to_string(), &named);
    }
    let unreadable = migrate(&with(&format!("{address}&sslrootcert=/nowhere.pem"))).await.expect_err("there is no file");
    assert_names(&unreadable.to_string(), &["DOORBUSTER_POSTGRES", "/nowhere.pem"]);
}
