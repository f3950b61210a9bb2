//! The schema registry: Apicurio, reached over the REST API that Confluent's registry has.

use std::path::PathBuf;

use crate::{
    Result, ask,
    folder::Folder,
    logs, native, postgres,
    secured::Secured,
    server::{Recipe, Server, Started},
    spawn::Launch,
};

/// Where Confluent's REST API begins.
const API: &str = "/apis/ccompat/v7";
/// The database that holds the schemas when they are to survive a restart.
const DATABASE: &str = "registry";

/// How to run it.
#[derive(Clone, Debug, Default)]
pub struct RegistryOptions {
    /// The endpoint of a Postgres whose database `registry` (made if missing) keeps the schemas. `None`: they are in
    /// memory, and a restart has none.
    pub postgres: Option<String>,
    /// 0: a free one.
    pub port: u16,
    /// Only over TLS. It asks for no login.
    pub secured: Option<Secured>,
    /// For the log, kept; `None`: a temporary folder.
    pub dir: Option<PathBuf>,
}

/// Starts the registry and waits until it lists its subjects. New versions of a schema must be FULL_TRANSITIVE
/// compatible.
///
/// # Errors
/// When the registry or Java is not installed, or it does not answer in time; the error holds the end of its log.
pub fn start(options: RegistryOptions) -> Result<Server> {
    let folder = Folder::open(options.dir.as_deref())?;
    let native = native::folder()?;
    let home = native.join("registry");
    let jar = native::files_ending(&home, "-runner.jar")?.remove(0);
    let storage = match &options.postgres {
        Some(endpoint) => database(endpoint)?,
        None => Vec::new(),
    };
    Server::start("registry", folder, &[options.port], |folder, ports| {
        let port = ports[0];
        let mut args: Vec<String> = ["-Xmx96m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xss512k", "-XX:-UsePerfData"]
            .map(str::to_owned)
            .to_vec();
        args.push("-XX:+ExitOnOutOfMemoryError".to_owned());
        args.extend(native::archive_option(&native, "registry.jsa"));
        args.extend(SETTINGS.map(|(name, value)| format!("-D{name}={value}")));
        let scheme = match &options.secured {
            None => {
                args.push(format!("-Dquarkus.http.port={port}"));
                "http"
            }
            Some(secured) => {
                let (certificate, key) = secured.place(folder)?;
                args.push("-Dquarkus.http.insecure-requests=disabled".to_owned());
                args.push(format!("-Dquarkus.http.ssl-port={port}"));
                args.push(format!("-Dquarkus.http.ssl.certificate.files={}", certificate.display()));
                args.push(format!("-Dquarkus.http.ssl.certificate.key-files={}", key.display()));
                "https"
            }
        };
        let is_open = options.secured.is_none();
        args.extend(storage.iter().cloned());
        args.extend(["-jar".to_owned(), jar.clone()]);
        let launch = Launch { cwd: Some(home.clone()), ..Launch::new(native::java(), args, folder.join("registry.log")) };
        let endpoint = format!("{scheme}://127.0.0.1:{port}{API}");
        Ok(Recipe::new(launch, endpoint, move |started| {
            listens(started)?;
            if is_open { subjects(port) } else { Ok(()) }
        }))
    })
}

const SETTINGS: [(&str, &str); 7] = [
    ("apicurio.rules.global.compatibility", "FULL_TRANSITIVE"),
    ("quarkus.http.host", "127.0.0.1"),
    // It takes a second port for its management, and a clash there ends it. 0: any.
    ("quarkus.management.port", "0"),
    ("quarkus.management.host", "127.0.0.1"),
    // For the line that says it listens.
    ("quarkus.log.level", "INFO"),
    ("quarkus.http.access-log.enabled", "false"),
    ("quarkus.banner.enabled", "false"),
];

/// It says nothing by which it could be told from another registry on the same port, so its own log is asked first.
fn listens(started: &Started<'_>) -> Result<(), String> {
    let log = logs::read_from(started.log, started.log_begin).map_err(|error| error.to_string())?;
    if !log.contains("Listening on") {
        return Err("its log does not say that it listens".to_owned());
    }
    Ok(())
}

/// Whether a registry on this port lists its subjects.
pub(crate) fn subjects(port: u16) -> Result<(), String> {
    match ask::http_get(port, &format!("{API}/subjects")) {
        Ok((200, _)) => Ok(()),
        Ok((status, _)) => Err(format!("it answered with status {status}")),
        Err(error) => Err(error.to_string()),
    }
}

/// Makes the database if it is missing; gives the options that point the registry to it.
fn database(endpoint: &str) -> Result<Vec<String>> {
    if postgres::query(endpoint, &format!("select 1 from pg_database where datname = '{DATABASE}'"))?.is_empty() {
        postgres::query(endpoint, &format!("create database {DATABASE}"))?;
    }
    let host = endpoint.trim_start_matches("postgresql://postgres@").split('/').next().unwrap_or_default();
    Ok(vec![
        "-Dapicurio.storage.kind=sql".to_owned(),
        "-Dapicurio.storage.sql.kind=postgresql".to_owned(),
        format!("-Dapicurio.datasource.url=jdbc:postgresql://{host}/{DATABASE}"),
        "-Dapicurio.datasource.username=postgres".to_owned(),
        "-Dapicurio.datasource.password=".to_owned(),
    ])
}
