use devstack::registry::{RegistryOptions, start};
use events::EVENT_SCHEMA;

use crate::{Authority, assert_names, connections};

#[tokio::test]
async fn the_registry_over_tls() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let options = RegistryOptions { secured: Some(authority.secured()), ..RegistryOptions::default() };
    let server = start(options).expect("the registry starts");
    let (address, ca) = (server.endpoint(), authority.file());
    // Its first answers take long, and longer on a busy machine.
    let ask = async |address: &str| {
        let settings = connections(&[("DOORBUSTER_REGISTRY", address)]).expect("the settings are complete");
        loop {
            match settings.schema_registry()?.register("s", EVENT_SCHEMA).await {
                Err(error) if error.to_string().contains("timed out") => {}
                other => break other,
            }
        }
    };
    let id = ask(&format!("{address}?ca={ca}")).await.expect("the right settings get in");
    assert_eq!(ask(&format!("{address}/?ca={ca}")).await.expect("and again"), id);

    let refusal = async |address: &str| ask(address).await.err().map(|error| error.to_string()).unwrap_or_default();
    for address in [format!("{address}?ca={}", stranger.file()), address.to_owned()] {
        assert_names(&refusal(&address).await, &["DOORBUSTER_REGISTRY", "certificate"]);
    }
    assert_names(&refusal(&address.replace("https:", "http:")).await, &["DOORBUSTER_REGISTRY"]);
    assert_names(&refusal(&format!("{address}?ca=/nowhere.pem")).await, &["DOORBUSTER_REGISTRY", "/nowhere.pem"]);
    for nothing in ["localhost:8081", "registry", "ftp://127.0.0.1"] {
        assert_names(&refusal(nothing).await, &["DOORBUSTER_REGISTRY", "http"]);
    }
}
