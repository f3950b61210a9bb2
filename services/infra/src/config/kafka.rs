//! How to reach brokers that demand encryption or a login: `DOORBUSTER_KAFKA_SECURITY` and the variables that it calls for.

use std::{fs, path::Path};

use super::{ConfigError, Env, Secret};

const SECURITY: &str = "DOORBUSTER_KAFKA_SECURITY";
const CA: &str = "DOORBUSTER_KAFKA_CA";
const MECHANISM: &str = "DOORBUSTER_KAFKA_MECHANISM";
const USER: &str = "DOORBUSTER_KAFKA_USER";
const PASSWORD: &str = "DOORBUSTER_KAFKA_PASSWORD";

/// The default is no encryption and no login.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KafkaSecurity {
    /// Encrypted, with the broker's certificate and name checked.
    pub tls: bool,
    /// PEM file of the authorities that may sign the brokers' certificates; `None`: the system's.
    pub ca: Option<String>,
    pub login: Option<KafkaLogin>,
}

/// Whom the brokers are told that we are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KafkaLogin {
    pub mechanism: Mechanism,
    pub user: String,
    pub password: Secret,
}

/// How a password is shown to the brokers (RFC 5802, RFC 4616).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, strum::EnumString, strum::IntoStaticStr)]
#[strum(ascii_case_insensitive)]
pub enum Mechanism {
    #[default]
    #[strum(serialize = "SCRAM-SHA-512")]
    ScramSha512,
    #[strum(serialize = "SCRAM-SHA-256")]
    ScramSha256,
    /// As it is: only over TLS.
    #[strum(serialize = "PLAIN")]
    Plain,
}

impl Mechanism {
    /// As Kafka calls it.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

impl KafkaSecurity {
    /// Kafka's name for it.
    pub fn protocol(&self) -> &'static str {
        match (self.tls, &self.login) {
            (false, None) => "plaintext",
            (true, None) => "ssl",
            (false, Some(_)) => "sasl_plaintext",
            (true, Some(_)) => "sasl_ssl",
        }
    }

    pub(super) fn from_env(env: &Env) -> Result<Self, ConfigError> {
        let protocol = env.get(SECURITY).unwrap_or("plaintext");
        let (tls, login) = match protocol.to_ascii_lowercase().as_str() {
            "plaintext" => (false, false),
            "ssl" => (true, false),
            "sasl_plaintext" => (false, true),
            "sasl_ssl" => (true, true),
            _ => return Err(ConfigError::invalid(SECURITY, protocol, "plaintext, ssl, sasl_plaintext or sasl_ssl is needed")),
        };
        // Somebody who sets these believes that they are used.
        let idle = [(CA, tls), (MECHANISM, login), (USER, login), (PASSWORD, login)];
        if let Some((name, _)) = idle.into_iter().find(|(name, used)| !used && env.get(name).is_some()) {
            return Err(ConfigError::invalid(SECURITY, protocol, format!("{name} is set, but is not used so")));
        }
        let ca = env.get(CA).map(str::to_owned);
        if let Some(file) = &ca {
            check_authorities(Path::new(file)).map_err(|problem| ConfigError::invalid(CA, file, problem))?;
        }
        let login = login.then(|| KafkaLogin::from_env(env)).transpose()?;
        Ok(Self { tls, ca, login })
    }
}

impl KafkaLogin {
    fn from_env(env: &Env) -> Result<Self, ConfigError> {
        let wrong = |name| ConfigError::invalid(MECHANISM, name, "SCRAM-SHA-512, SCRAM-SHA-256 or PLAIN is needed");
        let mechanism = env.get(MECHANISM).map(|name| name.parse().map_err(|_| wrong(name))).transpose()?.unwrap_or_default();
        Ok(Self {
            mechanism,
            user: env.required(USER, "the name under which this service logs in to Kafka")?,
            password: Secret::new(env.required(PASSWORD, "the password for DOORBUSTER_KAFKA_USER")?),
        })
    }
}

/// Whether a file can be read and holds certificates.
pub(crate) fn check_authorities(file: &Path) -> Result<(), String> {
    let pem = fs::read(file).map_err(|error| format!("the file cannot be read: {error}"))?;
    match native_tls::Certificate::stack_from_pem(&pem) {
        Ok(certificates) if !certificates.is_empty() => Ok(()),
        Ok(_) => Err("the file holds no certificate; a PEM file is needed".to_owned()),
        Err(error) => Err(format!("the file is no PEM file of certificates: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(vars: &[(&str, &str)]) -> Result<KafkaSecurity, String> {
        KafkaSecurity::from_env(&Env::of(vars.iter().copied())).map_err(|error| error.to_string())
    }

    #[test]
    fn nothing_is_demanded_by_default() {
        assert_eq!(parse(&[]), Ok(KafkaSecurity::default()));
        assert_eq!(KafkaSecurity::default().protocol(), "plaintext");
    }

    #[test]
    fn a_login_has_its_mechanism_and_keeps_its_password_to_itself() {
        let security = parse(&[(SECURITY, "SASL_SSL"), (USER, "orders"), (PASSWORD, "hunter2"), (MECHANISM, "plain")]).unwrap();
        assert_eq!(security.protocol(), "sasl_ssl");
        let shown = format!("{security:?}");
        assert!(shown.contains("orders") && shown.contains("Plain") && !shown.contains("hunter2"), "{shown}");
        assert_eq!(
            parse(&[(SECURITY, "sasl_ssl"), (USER, "u"), (PASSWORD, "p")]).unwrap().login.unwrap().mechanism,
            Mechanism::ScramSha512
        );
    }

    #[test]
    fn what_is_missing_idle_or_wrong_is_named() {
        type Pairs<'a> = &'a [(&'a str, &'a str)];
        let refused: [(Pairs<'_>, &[&str]); 6] = [
            (&[(SECURITY, "tls")], &[SECURITY, "\"tls\"", "sasl_ssl"]),
            (&[(SECURITY, "sasl_ssl"), (USER, "u")], &[PASSWORD]),
            (&[(SECURITY, "sasl_ssl"), (PASSWORD, "hunter2")], &[USER]),
            (&[(PASSWORD, "hunter2")], &[SECURITY, PASSWORD]),
            (&[(SECURITY, "sasl_ssl"), (USER, "u"), (PASSWORD, "hunter2"), (MECHANISM, "GSSAPI")], &[MECHANISM, "GSSAPI"]),
            (&[(SECURITY, "ssl"), (CA, "/nowhere.pem")], &[CA, "/nowhere.pem", "cannot be read"]),
        ];
        for (vars, named) in refused {
            let message = parse(vars).unwrap_err();
            assert!(named.iter().all(|name| message.contains(name)) && !message.contains("hunter2"), "{message}");
        }
        let no_pem = env!("CARGO_MANIFEST_DIR").to_owned() + "/Cargo.toml";
        let message = parse(&[(SECURITY, "ssl"), (CA, &no_pem)]).unwrap_err();
        assert!(message.contains(CA) && message.contains("certificate"), "{message}");
    }
}
