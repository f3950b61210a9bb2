//! The address of Postgres and what it says about encryption.
//!
//! `sslmode` and `sslrootcert` are written as for other clients of Postgres (libpq), with one difference: there is no encryption that leaves
//! open who the server is. `require`, `verify-ca` and `verify-full` all check its certificate and its name; without `sslmode`, or with `prefer`,
//! there is no encryption at all, since it would not keep anybody out.

use native_tls::{Certificate, TlsConnector};
use postgres_native_tls::MakeTlsConnector;
use tokio_postgres::config::SslMode;

use super::described;
use crate::config::{address::take_parameter, check_authorities};

/// Ends the error of a failed handshake.
pub(super) const TLS_REMEDY: &str =
    "; check sslmode and sslrootcert in DOORBUSTER_POSTGRES, and that the server's certificate names this host";

/// Ends an error of the server that the address causes (class 28 is a refused login), or tables that are not there, or are older than this version.
pub(super) fn remedy(code: &str) -> &'static str {
    match code {
        "3D000" => "; create it, or check DOORBUSTER_POSTGRES",
        "42P01" | "42703" => "; run `doorbuster migrate --apply`",
        _ if code.starts_with("28") => "; check user, password and sslmode in DOORBUSTER_POSTGRES",
        _ => "",
    }
}

pub(super) struct Address {
    pub(super) config: tokio_postgres::Config,
    /// Asked only where the address demands encryption.
    pub(super) tls: MakeTlsConnector,
}

impl Address {
    /// Reads the file with the authorities, if one is named. No text of an error shows the address: it may hold a password.
    pub(super) fn parse(address: &str) -> Result<Self, String> {
        let (address, authorities) = take_parameter(address, "sslrootcert");
        let (address, mode) = take_parameter(&address, "sslmode");
        let mut config: tokio_postgres::Config = address.parse().map_err(|error: tokio_postgres::Error| described(&error))?;
        let encrypted = match mode.as_deref() {
            Some("require" | "verify-ca" | "verify-full") => true,
            None | Some("disable" | "allow" | "prefer") => config.get_ssl_mode() == SslMode::Require,
            Some(other) => return Err(format!("sslmode={other} is unknown; disable or verify-full is needed")),
        };
        config.ssl_mode(if encrypted { SslMode::Require } else { SslMode::Disable });
        if authorities.is_some() && !encrypted {
            return Err("sslrootcert is set, but is used only with sslmode=verify-full".to_owned());
        }
        let connector = connector(authorities.as_deref())?;
        Ok(Self { config, tls: MakeTlsConnector::new(connector) })
    }
}

fn connector(authorities: Option<&str>) -> Result<TlsConnector, String> {
    let mut builder = TlsConnector::builder();
    if let Some(file) = authorities {
        let problem = |problem: String| format!("sslrootcert={file}: {problem}");
        check_authorities(file.as_ref()).map_err(problem)?;
        let pem = std::fs::read(file).map_err(|error| problem(error.to_string()))?;
        let certificates = Certificate::stack_from_pem(&pem).map_err(|error| problem(error.to_string()))?;
        builder.disable_built_in_roots(true);
        for certificate in certificates {
            builder.add_root_certificate(certificate);
        }
    }
    builder.build().map_err(|error| format!("TLS cannot be used: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encryption_is_all_or_nothing() {
        let modes = [
            ("", SslMode::Disable),
            ("?sslmode=prefer", SslMode::Disable),
            ("?sslmode=require", SslMode::Require),
            ("?application_name=x&sslmode=verify-full", SslMode::Require),
        ];
        for (query, mode) in modes {
            let parsed = Address::parse(&format!("postgresql://u:p@h:1/d{query}")).unwrap();
            assert_eq!(parsed.config.get_ssl_mode(), mode, "{query}");
        }
        assert_eq!(Address::parse("host=h user=u sslmode=require").unwrap().config.get_ssl_mode(), SslMode::Require);
    }

    #[test]
    fn what_is_wrong_is_named_without_the_password() {
        let wrong = [
            ("postgresql://u:hunter2@h/d?sslmode=tls", "sslmode=tls"),
            ("postgresql://u:hunter2@h/d?sslrootcert=/a.pem", "sslmode=verify-full"),
            ("postgresql://u:hunter2@h/d?sslmode=require&sslrootcert=/nowhere.pem", "/nowhere.pem"),
            ("postgresql://u:hunter2@h/d?colour=red", "colour"),
            ("postgresql://u:hunter2@h:port/d", "port"),
            ("hunter2", ""),
        ];
        for (address, named) in wrong {
            let problem = Address::parse(address).err().unwrap();
            assert!(problem.contains(named) && !problem.contains("hunter2"), "{problem}");
        }
    }
}
