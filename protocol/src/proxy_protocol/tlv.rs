//! What stands behind the addresses in version 2: type, length, value.

use bytes::{BufMut, BytesMut};

use super::HeaderError;

/// What a proxy says of a connection beside its ends. Types that the specification does not name are skipped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tlvs {
    /// The protocol that was agreed by ALPN.
    pub alpn: Option<Box<[u8]>>,
    /// The host name that the client has asked for, by SNI.
    pub authority: Option<Box<str>>,
    /// A number of the connection, at most 128 bytes.
    pub unique_id: Option<Box<[u8]>>,
    /// What is known of TLS between client and proxy.
    pub tls: Option<Tls>,
    /// The name of the network namespace.
    pub namespace: Option<Box<str>>,
}

/// TLS between client and proxy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// Whether the client has connected over TLS.
    pub used: bool,
    /// Whether it has shown a certificate on this connection.
    pub certificate: bool,
    /// Whether it has shown one in this TLS session.
    pub certificate_in_session: bool,
    /// Whether it has shown a certificate and that was verified.
    pub verified: bool,
    /// `TLSv1.3`
    pub version: Option<Box<str>>,
    /// The common name in the client's certificate.
    pub common_name: Option<Box<str>>,
    /// The cipher's name.
    pub cipher: Option<Box<str>>,
    /// Of the proxy's certificate, `SHA256`.
    pub signature_algorithm: Option<Box<str>>,
    /// Of the proxy's certificate, `RSA2048`.
    pub key_algorithm: Option<Box<str>>,
}

impl Tlvs {
    /// Reads all of `input`. Where the checksum stands is given back too.
    pub(super) fn read(input: &[u8]) -> Result<(Self, Option<usize>), HeaderError> {
        let mut tlvs = Tlvs::default();
        let mut checksum = None;
        for item in items(input) {
            let Item { kind, value, at } = item?;
            match kind {
                ALPN => once(&mut tlvs.alpn, value.into())?,
                AUTHORITY => once(&mut tlvs.authority, text(value)?)?,
                CRC32C if value.len() == 4 => once(&mut checksum, at)?,
                CRC32C => return Err(HeaderError::Malformed("the length of its checksum")),
                UNIQUE_ID if value.len() <= LONGEST_ID => once(&mut tlvs.unique_id, value.into())?,
                UNIQUE_ID => return Err(HeaderError::Malformed("the length of its unique id")),
                TLS => once(&mut tlvs.tls, Tls::read(value)?)?,
                NAMESPACE => once(&mut tlvs.namespace, text(value)?)?,
                // NOOP among them.
                _ => {}
            }
        }
        Ok((tlvs, checksum))
    }

    /// Writes them; one that is too long for its length is an error.
    pub(super) fn write(&self, out: &mut BytesMut) -> Result<(), HeaderError> {
        let text = |text: &Option<Box<str>>| text.as_deref().map(str::as_bytes).map(Box::from);
        for (kind, value) in [
            (ALPN, self.alpn.clone()),
            (AUTHORITY, text(&self.authority)),
            (UNIQUE_ID, self.unique_id.clone()),
            (NAMESPACE, text(&self.namespace)),
        ] {
            if let Some(value) = value {
                put(out, kind, &value)?;
            }
        }
        match &self.tls {
            Some(tls) => tls.write(out),
            None => Ok(()),
        }
    }
}

impl Tls {
    fn read(value: &[u8]) -> Result<Self, HeaderError> {
        let malformed = HeaderError::Malformed("its part about TLS");
        let ([client, verify @ ..], rest) = value.split_first_chunk::<5>().ok_or(malformed)?;
        let certificate = client & CLIENT_CERTIFICATE != 0;
        let certificate_in_session = client & CLIENT_CERTIFICATE_IN_SESSION != 0;
        let mut tls = Tls {
            used: client & CLIENT_TLS != 0,
            certificate,
            certificate_in_session,
            // Zero is said of no certificate, too.
            verified: (certificate || certificate_in_session) && *verify == [0; 4],
            ..Tls::default()
        };
        for item in items(rest) {
            let Item { kind, value, .. } = item?;
            let place = match kind {
                TLS_VERSION => &mut tls.version,
                TLS_COMMON_NAME => &mut tls.common_name,
                TLS_CIPHER => &mut tls.cipher,
                TLS_SIGNATURE => &mut tls.signature_algorithm,
                TLS_KEY => &mut tls.key_algorithm,
                _ => continue,
            };
            once(place, text(value)?)?;
        }
        Ok(tls)
    }

    fn write(&self, out: &mut BytesMut) -> Result<(), HeaderError> {
        let mut value = BytesMut::new();
        let flag = |set: bool, flag: u8| if set { flag } else { 0 };
        value.put_u8(
            flag(self.used, CLIENT_TLS)
                | flag(self.certificate, CLIENT_CERTIFICATE)
                | flag(self.certificate_in_session, CLIENT_CERTIFICATE_IN_SESSION),
        );
        value.put_u32(u32::from(!self.verified));
        for (kind, text) in [
            (TLS_VERSION, &self.version),
            (TLS_COMMON_NAME, &self.common_name),
            (TLS_CIPHER, &self.cipher),
            (TLS_SIGNATURE, &self.signature_algorithm),
            (TLS_KEY, &self.key_algorithm),
        ] {
            if let Some(text) = text {
                put(&mut value, kind, text.as_bytes())?;
            }
        }
        put(out, TLS, &value)
    }
}

/// Appends the place for a checksum and says where in `out` it is.
pub(super) fn put_checksum(out: &mut BytesMut) -> usize {
    out.put_slice(&[CRC32C, 0, 4]);
    out.put_u32(0);
    out.len() - 4
}

fn put(out: &mut BytesMut, kind: u8, value: &[u8]) -> Result<(), HeaderError> {
    out.put_u8(kind);
    out.put_u16(value.len().try_into().map_err(|_| HeaderError::TooLarge)?);
    out.put_slice(value);
    Ok(())
}

struct Item<'a> {
    kind: u8,
    value: &'a [u8],
    /// Where the value begins.
    at: usize,
}

/// What stands in `input`; an error for what is cut off, and then nothing.
fn items(input: &[u8]) -> impl Iterator<Item = Result<Item<'_>, HeaderError>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let rest = input.get(at..).filter(|rest| !rest.is_empty())?;
        let item = rest.split_first_chunk::<3>().and_then(|([kind, length @ ..], rest)| {
            let value = rest.get(..u16::from_be_bytes(*length).into())?;
            Some(Item { kind: *kind, value, at: at + 3 })
        });
        at = item.as_ref().map_or(input.len(), |item| item.at + item.value.len());
        Some(item.ok_or(HeaderError::Malformed("a part is cut off")))
    })
}

/// Who reads the first and who reads the last would understand differently.
fn once<T>(place: &mut Option<T>, value: T) -> Result<(), HeaderError> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(HeaderError::Malformed("a part stands twice")),
    }
}

/// Text without control characters, so that it can go into a log or a field.
fn text(value: &[u8]) -> Result<Box<str>, HeaderError> {
    match std::str::from_utf8(value) {
        Ok(text) if !text.chars().any(char::is_control) => Ok(text.into()),
        _ => Err(HeaderError::Malformed("a text")),
    }
}

const ALPN: u8 = 0x01;
const AUTHORITY: u8 = 0x02;
const CRC32C: u8 = 0x03;
const UNIQUE_ID: u8 = 0x05;
const TLS: u8 = 0x20;
const TLS_VERSION: u8 = 0x21;
const TLS_COMMON_NAME: u8 = 0x22;
const TLS_CIPHER: u8 = 0x23;
const TLS_SIGNATURE: u8 = 0x24;
const TLS_KEY: u8 = 0x25;
const NAMESPACE: u8 = 0x30;

const CLIENT_TLS: u8 = 0x01;
const CLIENT_CERTIFICATE: u8 = 0x02;
const CLIENT_CERTIFICATE_IN_SESSION: u8 = 0x04;

const LONGEST_ID: usize = 128;
