//! A Redis that keeps its data in memory or in an append-only file.

use std::path::PathBuf;

use nix::sys::signal::Signal;

use crate::{
    Result, ask,
    folder::{self, Folder},
    native,
    server::{Recipe, Server},
    spawn::Launch,
};

/// How to run it.
#[derive(Clone, Debug, Default)]
pub struct RedisOptions {
    /// Writes an append-only file, so that a restart has the data again. Else a restart is empty.
    pub aof: bool,
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
    Server::start("redis", folder, &[options.port], |folder, ports| {
        let data = folder.join("data");
        folder::make(&data)?;
        let port = ports[0];
        let appendonly = if options.aof { "yes" } else { "no" };
        let mut args: Vec<String> =
            ["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", appendonly]
                .map(str::to_owned)
                .to_vec();
        args.extend(["--maxmemory-policy", "noeviction", "--dir"].map(str::to_owned));
        args.push(data.to_string_lossy().into_owned());
        args.extend(options.args.iter().cloned());
        Ok(Recipe {
            launch: Launch {
                program: program.clone(),
                args: args.into_iter().map(Into::into).collect(),
                env: Vec::new(),
                cwd: Some(data),
                log: folder.join("redis.log"),
                account: Vec::new(),
            },
            endpoint: format!("redis://127.0.0.1:{port}"),
            probe: Box::new(move |started| match ask::redis_pid(port) {
                Ok(pid) if pid == started.pid => Ok(()),
                Ok(pid) => Err(format!("port {port} belongs to another Redis (process {pid})")),
                Err(error) => Err(error.to_string()),
            }),
            stop_signal: Signal::SIGTERM,
        })
    })
}
