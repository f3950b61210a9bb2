//! A Redis that keeps its data in memory or in an append-only file.

use std::path::PathBuf;

use crate::{
    Result, Secured, ask,
    folder::{self, Folder},
    native,
    server::{Recipe, Server, Started},
    spawn::Launch,
};

/// How to run it.
#[derive(Clone, Debug, Default)]
pub struct RedisOptions {
    /// Writes an append-only file, so that a restart has the data again. Else a restart is empty.
    pub aof: bool,
    /// Clients must come over TLS and with the password. A second port without TLS, known only to the start, wants the password too.
    pub secured: Option<Secured>,
    /// Further arguments of `redis-server`; they win over ours.
    pub args: Vec<String>,
    /// 0: a free one.
    pub port: u16,
    /// For data and log, kept; `None`: a temporary folder.
    pub dir: Option<PathBuf>,
}

/// Starts `redis-server` and waits until it answers PING.
///
/// # Errors
/// When Redis is not installed, or does not answer in time; the error holds the end of its log.
pub fn start(options: RedisOptions) -> Result<Server> {
    let folder = Folder::open(options.dir.as_deref())?;
    let program = native::on_path("redis-server")?;
    Server::start("redis", folder, &ports_of(&options), |folder, ports| {
        let data = folder.join("data");
        folder::make(&data)?;
        // The last one speaks without TLS.
        let (port, plain) = (ports[0], ports[ports.len() - 1]);
        let appendonly = if options.aof { "yes" } else { "no" };
        let mut args: Vec<String> =
            ["--port", &plain.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", appendonly]
                .map(str::to_owned)
                .to_vec();
        args.extend(["--maxmemory-policy", "noeviction", "--dir"].map(str::to_owned));
        args.push(data.to_string_lossy().into_owned());
        let password = options.secured.as_ref().map(|secured| secured.password.clone());
        if let Some(secured) = &options.secured {
            let (certificate, key) = secured.place(folder)?;
            let (certificate, key) = (certificate.to_string_lossy(), key.to_string_lossy());
            let tls =
                ["--tls-port", &port.to_string(), "--tls-cert-file", &certificate, "--tls-key-file", &key].map(str::to_owned);
            args.extend(tls);
            // Clients show no certificates, so no authority of theirs is needed; Redis wants one all the same.
            args.extend(["--tls-auth-clients", "no", "--tls-ca-cert-file", &certificate].map(str::to_owned));
            args.extend(["--requirepass", &secured.password].map(str::to_owned));
        }
        args.extend(options.args.iter().cloned());
        let endpoint = match &password {
            Some(password) => format!("rediss://:{password}@127.0.0.1:{port}"),
            None => format!("redis://127.0.0.1:{port}"),
        };
        let launch = Launch { cwd: Some(data), ..Launch::new(program.clone(), args, folder.join("redis.log")) };
        Ok(Recipe::new(launch, endpoint, move |started| is_ours(started, plain, password.as_deref())))
    })
}

/// Whether the server behind a port is the one that was started, and answers.
fn is_ours(started: &Started<'_>, port: u16, password: Option<&str>) -> Result<(), String> {
    match ask::redis_pid(port, password) {
        Ok(pid) if pid == started.pid => Ok(()),
        Ok(pid) => Err(format!("port {port} belongs to another Redis (process {pid})")),
        Err(error) => Err(error.to_string()),
    }
}

/// For clients, and one for the start where clients must use TLS.
fn ports_of(options: &RedisOptions) -> Vec<u16> {
    if options.secured.is_some() { vec![options.port, 0] } else { vec![options.port] }
}

/// Starts a sentinel that alone decides about the primary `of`, known as `name`: after a second of silence it makes a replica the primary.
/// Its endpoint names the primary, too.
///
/// # Errors
/// As for [`start`].
pub fn start_sentinel(of: &Server, name: &str) -> Result<Server> {
    let folder = Folder::open(None)?;
    let program = native::on_path("redis-server")?;
    let primary = of.port();
    Server::start("sentinel", folder, &[0], |folder, ports| {
        let port = ports[0];
        // It writes into this file itself what it learns.
        let file = folder.join("sentinel.conf");
        let lines = [
            format!("port {port}"),
            "bind 127.0.0.1".to_owned(),
            format!("sentinel monitor {name} 127.0.0.1 {primary} 1"),
            format!("sentinel down-after-milliseconds {name} 1000"),
            format!("sentinel failover-timeout {name} 5000"),
        ];
        folder::write(&file, lines.join("\n"))?;
        let args = vec![file.to_string_lossy().into_owned(), "--sentinel".to_owned()];
        let launch = Launch::new(program.clone(), args, folder.join("sentinel.log"));
        let launch = Launch { cwd: Some(folder.to_path_buf()), ..launch };
        let endpoint = format!("redis+sentinel://127.0.0.1:{port}/{name}");
        Ok(Recipe::new(launch, endpoint, move |started| is_ours(started, port, None)))
    })
}
