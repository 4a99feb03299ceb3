//! The names that a certificate is for.
//!
//! A server that is reached from elsewhere does not know how it is called there; its certificate
//! does. So a request is meant for it if the certificate is good for the name in it.

use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use webpki::EndEntityCert;

/// Names and addresses that stand in a certificate. By default none.
#[derive(Debug, Clone, Default)]
pub struct Names(Option<CertificateDer<'static>>);

impl Names {
    /// Those of a certificate that makes sense.
    pub(crate) fn of(certificate: CertificateDer<'static>) -> Result<Names, webpki::Error> {
        EndEntityCert::try_from(&certificate)?;
        Ok(Names(Some(certificate)))
    }

    /// Whether a name, or an address, is one of them. An IPv6 address may stand in brackets.
    pub fn admit(&self, host: &str) -> bool {
        let host = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
        let Ok(name) = ServerName::try_from(host) else { return false };
        let parsed = self.0.as_ref().and_then(|der| EndEntityCert::try_from(der).ok());
        parsed.is_some_and(|cert| cert.verify_is_valid_for_subject_name(&name).is_ok())
    }

    /// The first name that a person can use, if the certificate has any and not only addresses.
    pub fn first(&self) -> Option<String> {
        let parsed = EndEntityCert::try_from(self.0.as_ref()?).ok()?;
        parsed.valid_dns_names().find(|name| !name.contains('*')).map(str::to_owned)
    }
}

#[cfg(test)]
mod tests {
    use crate::Acceptor;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    /// A certificate for these names, and its key, in files.
    fn files(dir: &Path, names: &[&str], mode: u32) -> (std::path::PathBuf, std::path::PathBuf) {
        let names: Vec<String> = names.iter().map(|n| (*n).to_owned()).collect();
        let made = rcgen::generate_simple_self_signed(names).unwrap();
        let (cert, key) = (dir.join("cert.pem"), dir.join("key.pem"));
        std::fs::write(&cert, made.cert.pem()).unwrap();
        std::fs::write(&key, made.key_pair.serialize_pem()).unwrap();
        std::fs::set_permissions(&key, PermissionsExt::from_mode(mode)).unwrap();
        (cert, key)
    }

    #[test]
    fn a_server_is_called_what_its_certificate_says() {
        let dir = tempfile::tempdir().unwrap();
        let (cert, key) =
            files(dir.path(), &["*.home.lan", "nas.example", "192.0.2.7", "2001:db8::7"], 0o600);
        let (_, names) = Acceptor::for_anyone(&cert, &key).unwrap();
        for good in ["nas.example", "NAS.example", "box.home.lan", "192.0.2.7", "[2001:db8::7]"] {
            assert!(names.admit(good), "{good}");
        }
        for bad in [
            "evil.example",
            "lan",
            "a.b.lan",
            "192.0.2.8",
            "[2001:db8::8]",
            "",
            "nas.example:1",
            "a b",
            "\u{e9}",
        ] {
            assert!(!names.admit(bad), "{bad}");
        }
        assert_eq!(names.first().as_deref(), Some("nas.example"));
        let (cert, key) = files(dir.path(), &["192.0.2.7"], 0o640);
        assert_eq!(Acceptor::for_anyone(&cert, &key).unwrap().1.first(), None);
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let (cert, key) = files(dir.path(), &["nas.example"], 0o644);
        let why = |cert: &Path, key: &Path| Acceptor::for_anyone(cert, key).unwrap_err().to_string();
        assert!(why(&cert, &key).contains("key.pem': everybody may read it"));
        std::fs::set_permissions(&key, PermissionsExt::from_mode(0o600)).unwrap();
        assert!(why(&key, &key).contains("nothing of the kind"));
        assert!(why(&cert, &cert).contains("cert.pem'"));
        assert!(why(&dir.path().join("none"), &key).contains("none'"));
        // A key that is another certificate's.
        let other = tempfile::tempdir().unwrap();
        let (_, foreign) = files(other.path(), &["nas.example"], 0o600);
        assert!(why(&cert, &foreign).contains("cert.pem'"));
    }
}
