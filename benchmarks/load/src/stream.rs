//! The bytes of a connection: as they are, or encrypted by TLS 1.3, with one cipher for whichever
//! server, so that two servers do the same work.
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::cipher_suite::TLS13_AES_256_GCM_SHA384;
use rustls::version::TLS13;
use rustls::{Certificate, ClientConfig, ClientConnection, RootCertStore, ServerName, StreamOwned};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A server that says nothing for so long has failed; Java's clients give up after 3 s.
const SILENCE_MAX: Duration = Duration::from_secs(10);

pub enum Stream {
    Plain(TcpStream),
    Encrypted(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Stream {
    /// Connects; encrypted, if there is a certificate to trust, which is in that file (DER).
    pub fn open(address: SocketAddr, trusted: Option<&Path>) -> Result<Stream> {
        let mut socket = TcpStream::connect_timeout(&address, CONNECT_TIMEOUT)?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(SILENCE_MAX))?;
        socket.set_write_timeout(Some(SILENCE_MAX))?;
        let path = match trusted {
            Some(path) => path,
            None => return Ok(Stream::Plain(socket)),
        };
        let server = ServerName::IpAddress(address.ip());
        let mut tls = ClientConnection::new(Arc::new(trusting(path)?), server).map_err(of_tls)?;
        while tls.is_handshaking() {
            tls.complete_io(&mut socket)?;
        }
        Ok(Stream::Encrypted(Box::new(StreamOwned::new(tls, socket))))
    }
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> Result<usize> {
        match self {
            Stream::Plain(socket) => socket.read(into),
            Stream::Encrypted(stream) => stream.read(into),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        match self {
            Stream::Plain(socket) => socket.write(bytes),
            Stream::Encrypted(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> Result<()> {
        match self {
            Stream::Plain(socket) => socket.flush(),
            Stream::Encrypted(stream) => stream.flush(),
        }
    }
}

fn trusting(path: &Path) -> Result<ClientConfig> {
    let certificate = std::fs::read(path)
        .map_err(|error| Error::new(error.kind(), format!("{}: {error}", path.display())))?;
    let mut roots = RootCertStore::empty();
    roots.add(&Certificate(certificate)).map_err(of_tls)?;
    let config = ClientConfig::builder()
        .with_cipher_suites(&[TLS13_AES_256_GCM_SHA384])
        .with_safe_default_kx_groups()
        .with_protocol_versions(&[&TLS13])
        .map_err(of_tls)?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}

fn of_tls(error: rustls::Error) -> Error {
    Error::new(ErrorKind::InvalidData, format!("TLS: {error}"))
}
