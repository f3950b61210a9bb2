//! Where Redis is: at one address, or wherever its sentinels say that the primary is now.
//!
//! `redis+sentinel://[[user]:password@]host:port,host:port/NAME[?ca=FILE]`, or `rediss+sentinel:` over TLS. The login is that of Redis; the
//! sentinels are asked without one. They are asked at the start and whenever the connection fails or its server refuses to serve, so the
//! answer of a moment ago is never trusted for longer than it works.

use std::time::Duration;

use redis::{AsyncConnectionConfig, Client, ConnectionAddr, ErrorKind, RedisError, RedisResult};

use super::{StoreError, server};

/// For a sentinel to connect and to answer, each. One that does not is passed over.
const SENTINEL_TIMEOUT: Duration = Duration::from_millis(500);

#[derive(Clone)]
pub(super) enum Place {
    Fixed(Client),
    Sentinels {
        sentinels: Vec<Client>,
        /// What the sentinels call the primary.
        name: String,
        /// With the login and TLS of Redis; the address is theirs to say.
        template: Client,
    },
}

impl Place {
    /// Connects nothing yet.
    pub(super) fn parse(url: &str) -> Result<Self, StoreError> {
        let Some((scheme, rest)) = url.split_once("+sentinel://") else { return Ok(Self::Fixed(server::client(url)?)) };
        let login = rest.rfind('@').map_or(0, |at| at + 1);
        let (login, rest) = rest.split_at(login);
        let (rest, query) = rest.find('?').map_or((rest, ""), |mark| rest.split_at(mark));
        let Some((hosts, name)) = rest.split_once('/').filter(|(_, name)| !name.is_empty() && !name.contains('/')) else {
            let form = "redis+sentinel://[[user]:password@]host:port,host:port/NAME[?ca=FILE]";
            return Err(server::unfit(url, format!("the name of the primary is missing; write DOORBUSTER_REDIS as {form}")));
        };
        let client = |login: &str, host: &str| server::client(&format!("{scheme}://{login}{host}{query}"));
        let sentinels: Vec<Client> = hosts.split(',').map(|host| client("", host)).collect::<Result<_, _>>()?;
        let template = client(login, hosts.split(',').next().unwrap_or_default())?;
        Ok(Self::Sentinels { sentinels, name: name.to_owned(), template })
    }

    /// A client for the server that is the primary now. Asks the sentinels in turn, for a second each at most.
    pub(super) async fn client(&self) -> RedisResult<Client> {
        let (sentinels, name, template) = match self {
            Self::Fixed(client) => return Ok(client.clone()),
            Self::Sentinels { sentinels, name, template } => (sentinels, name, template),
        };
        let mut last = RedisError::from((ErrorKind::InvalidClientConfig, "no sentinel is named"));
        for sentinel in sentinels {
            match primary(sentinel, name).await {
                Ok((host, port)) => return at(template, host, port),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Whether another answer may follow.
    pub(super) fn may_move(&self) -> bool {
        matches!(self, Self::Sentinels { .. })
    }
}

async fn primary(sentinel: &Client, name: &str) -> RedisResult<(String, u16)> {
    let config =
        AsyncConnectionConfig::new().set_connection_timeout(Some(SENTINEL_TIMEOUT)).set_response_timeout(Some(SENTINEL_TIMEOUT));
    let mut connection = sentinel.get_multiplexed_async_connection_with_config(&config).await?;
    let command = redis::cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(name).to_owned();
    let found: Option<(String, u16)> = command.query_async(&mut connection).await?;
    found.ok_or_else(|| (ErrorKind::InvalidClientConfig, "the sentinel knows no primary of this name", name.to_owned()).into())
}

fn at(template: &Client, new_host: String, new_port: u16) -> RedisResult<Client> {
    let info = template.get_connection_info().clone();
    let mut address = info.addr().clone();
    if let ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } = &mut address {
        *host = new_host;
        *port = new_port;
    }
    Client::open(info.set_addr(address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentinels_have_no_login_and_the_primary_has() {
        let place = Place::parse("rediss+sentinel://bob:hunter2@h:1,i:2/shop").unwrap();
        let Place::Sentinels { sentinels, name, template } = place else { panic!("sentinels are named") };
        assert_eq!(name, "shop");
        let addresses: Vec<String> = sentinels.iter().map(|s| s.get_connection_info().addr().to_string()).collect();
        assert_eq!(addresses, ["h:1", "i:2"]);
        assert!(sentinels.iter().all(|s| s.get_connection_info().redis_settings().password().is_none()));
        let primary = at(&template, "p".to_owned(), 3).unwrap();
        let info = primary.get_connection_info();
        assert_eq!((info.addr().to_string().as_str(), info.redis_settings().password()), ("p:3", Some("hunter2")));
        assert!(matches!(info.addr(), ConnectionAddr::TcpTls { .. }));
    }

    #[test]
    fn a_missing_name_is_said() {
        for url in ["redis+sentinel://:hunter2@h:1", "redis+sentinel://:hunter2@h:1/", "redis+sentinel://:hunter2@h:1/a/b"] {
            let text = Place::parse(url).err().unwrap().to_string();
            assert!(text.contains("DOORBUSTER_REDIS") && !text.contains("hunter2"), "{text}");
        }
    }
}
