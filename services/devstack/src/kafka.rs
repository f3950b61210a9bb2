//! One Kafka broker that is its own controller (KRaft), without copies of anything: acknowledged means written by it.

use std::{
    fs,
    path::{Path, PathBuf},
};

use nix::sys::signal::Signal;
use rand::RngCore;

use crate::{
    Result, StackError, ask,
    folder::{self, Folder},
    native,
    server::{Recipe, Server},
    spawn::Launch,
};

/// How to run it.
#[derive(Clone, Debug, Default)]
pub struct KafkaOptions {
    /// Lets the JVM compile hot code fully (C2). Right for benchmarks; else it starts quicker and costs less without.
    pub c2: bool,
    /// Further lines of `server.properties`; they win over ours.
    pub properties: Vec<(String, String)>,
    /// For clients; 0: a free one.
    pub port: u16,
    /// For data and log, kept; `None`: a temporary folder.
    pub dir: Option<PathBuf>,
}

/// Starts a broker and waits until it names itself as ready in an answer to Metadata.
///
/// # Errors
/// When Kafka or Java is not installed, or the broker does not answer in time; the error holds the end of its log.
pub fn start(options: KafkaOptions) -> Result<Server> {
    let folder = Folder::open(options.dir.as_deref())?;
    let native = native::folder()?;
    let cluster = format(&folder.path().join("data"), &native.join("kafka-bootstrap.checkpoint"))?;
    let jars = native::files_ending(&native.join("kafka"), ".jar")?;
    Server::start("kafka", folder, &[options.port, 0], |folder, ports| {
        let properties = folder.join("server.properties");
        folder::write(&properties, server_properties(&folder.join("data"), ports[0], ports[1], &options.properties))?;
        let mut args: Vec<String> =
            ["-Xmx384m", "-XX:+UseSerialGC", "-XX:-UsePerfData", "-XX:+ExitOnOutOfMemoryError"].map(str::to_owned).to_vec();
        if !options.c2 {
            args.push("-XX:TieredStopAtLevel=1".to_owned());
        }
        args.extend(native::archive_option(&native, "kafka.jsa"));
        args.extend(LOGGING.map(|(name, value)| format!("-Dorg.slf4j.simpleLogger.{name}={value}")));
        // Names without a path, in order: the archive is bound to the class path as compose/native/archives.sh spells it.
        args.extend(["-cp".to_owned(), jars.join(":"), "kafka.Kafka".to_owned(), properties.to_string_lossy().into_owned()]);
        let port = ports[0];
        let cluster = cluster.clone();
        Ok(Recipe {
            launch: Launch {
                program: native::java(),
                args: args.into_iter().map(Into::into).collect(),
                env: Vec::new(),
                cwd: Some(native.join("kafka")),
                log: folder.join("kafka.log"),
                account: Vec::new(),
            },
            endpoint: format!("127.0.0.1:{port}"),
            probe: Box::new(move |_| match ask::kafka_cluster(port) {
                Ok(found) if found.id != cluster => Err(format!("port {port} belongs to another Kafka")),
                Ok(found) if found.brokers == 0 => Err("the broker is not registered yet".to_owned()),
                Ok(_) => Ok(()),
                Err(error) => Err(error.to_string()),
            }),
            stop_signal: Signal::SIGTERM,
        })
    })
}

/// The broker prints its whole configuration several times at start: left out, else it is all that a log's end shows.
const LOGGING: [(&str, &str); 4] = [
    ("showDateTime", "true"),
    ("dateTimeFormat", "HH:mm:ss.SSS"),
    ("showShortLogName", "true"),
    ("log.org.apache.kafka.common.config", "warn"),
];

/// Makes a data folder for a new cluster, or keeps the one there is; gives the cluster's id.
///
/// The set-up script has run Kafka's own `StorageTool` once. A second JVM for each start would take as long as the
/// broker, and only the two ids differ.
fn format(data: &Path, bootstrap: &Path) -> Result<String> {
    let meta = data.join("meta.properties");
    if let Ok(text) = fs::read_to_string(&meta) {
        let id = text.lines().find_map(|line| line.strip_prefix("cluster.id="));
        return id.map(str::to_owned).ok_or_else(|| {
            StackError::system(format!("read {}", meta.display()))(std::io::Error::other("it names no cluster.id"))
        });
    }
    folder::make(data)?;
    fs::copy(bootstrap, data.join("bootstrap.checkpoint"))
        .map_err(StackError::system(format!("copy {}", bootstrap.display())))?;
    let cluster = random_id();
    // Written last: its presence says that the folder is complete.
    folder::write(&meta, format!("version=1\nnode.id=1\ncluster.id={cluster}\ndirectory.id={}\n", random_id()))?;
    Ok(cluster)
}

/// 16 random bytes as Kafka writes its ids: URL-safe base64 without padding, and never a dash in front.
fn random_id() -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut bytes = [0; 16];
    rand::rng().fill_bytes(&mut bytes);
    // The first 100 ids are reserved, and 0xf8 in front would be the dash: both need other top bits.
    bytes[0] = bytes[0] & 0x7f | 0x40;
    let bits = u128::from_be_bytes(bytes);
    (0..22)
        .map(|index| {
            let shift = 122 - 6 * index;
            let six = if shift >= 0 { bits >> shift } else { bits << -shift };
            char::from(ALPHABET[(six & 63) as usize])
        })
        .collect()
}

fn server_properties(data: &Path, port: u16, controller: u16, more: &[(String, String)]) -> String {
    let addresses = [
        ("controller.quorum.voters", format!("1@127.0.0.1:{controller}")),
        ("listeners", format!("PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}")),
        ("advertised.listeners", format!("PLAINTEXT://127.0.0.1:{port}")),
        ("log.dirs", data.display().to_string()),
    ];
    let mut text: String = addresses.iter().map(|(name, value)| format!("{name}={value}\n")).collect();
    text.push_str(SETTINGS);
    // Of two lines with one name, Java's properties keep the later.
    text.extend(more.iter().map(|(name, value)| format!("{name}={value}\n")));
    text
}

const SETTINGS: &str = "\
process.roles=broker,controller
node.id=1
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=1
group.initial.rebalance.delay.ms=0
# A killed broker may register again only when its old session is over: after 9 s by default.
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500
# So that tests need not wait long for a dead member or a dead transaction to be noticed.
group.min.session.timeout.ms=1000
group.consumer.min.session.timeout.ms=1000
group.consumer.min.heartbeat.interval.ms=100
transaction.abort.timed.out.transaction.cleanup.interval.ms=1000
# A third of the heap by default, for topics far larger than ours.
log.cleaner.dedupe.buffer.size=16777216
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_as_kafka_writes_them() {
        for _ in 0..1000 {
            let id = random_id();
            assert_eq!(id.len(), 22);
            assert!(!id.starts_with('-'));
            assert!("AQgw".contains(id.chars().last().unwrap()), "{id}: two bits are left for the last character");
        }
    }

    #[test]
    fn a_formatted_folder_keeps_its_cluster() {
        let folder = tempfile::tempdir().unwrap();
        let bootstrap = folder.path().join("bootstrap");
        fs::write(&bootstrap, "x").unwrap();
        let data = folder.path().join("data");
        let first = format(&data, &bootstrap).unwrap();
        assert_eq!(format(&data, &bootstrap).unwrap(), first);
    }

    #[test]
    fn further_properties_come_last() {
        let text = server_properties(Path::new("/d"), 1, 2, &[("node.id".into(), "7".into())]);
        assert!(text.ends_with("\nnode.id=7\n"));
    }
}
