//! TCP to a name with several addresses.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::timeout;

/// The first connection that `connect` makes, the addresses one after the other, each with [`LIMIT`].
///
/// # Errors
/// What went wrong with the last of them, or that there is none.
pub(crate) async fn first<C, F>(addresses: impl IntoIterator<Item = SocketAddr>, connect: C) -> io::Result<TcpStream>
where
    C: Fn(SocketAddr) -> F,
    F: Future<Output = io::Result<TcpStream>>,
{
    let mut why = io::Error::new(ErrorKind::NotFound, "the name has no address");
    for address in addresses {
        match timeout(LIMIT, connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => why = error,
            Err(_) => why = ErrorKind::TimedOut.into(),
        }
    }
    Err(why)
}

/// A dead IPv6 route must leave time for IPv4; a first packet that was lost is sent again after 1 s.
const LIMIT: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[tokio::test]
    async fn case_21_an_address_that_never_answers_leaves_time_for_the_next() {
        // A listener whose queue is full takes no connection and refuses none.
        let full = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        full.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        full.listen(0).unwrap();
        let dead = full.local_addr().unwrap().as_socket().unwrap();
        let mut waiting = Vec::new();
        while let Ok(Ok(stream)) = timeout(Duration::from_millis(300), TcpStream::connect(dead)).await {
            waiting.push(stream);
            assert!(waiting.len() < 64, "the queue never fills");
        }
        let alive = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = alive.local_addr().unwrap();
        let began = Instant::now();
        let stream = first([dead, address], TcpStream::connect).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), address);
        assert!(began.elapsed() < Duration::from_secs(6), "{:?}", began.elapsed());
    }

    #[tokio::test]
    async fn without_any_address_it_says_so() {
        assert_eq!(first([], TcpStream::connect).await.unwrap_err().kind(), ErrorKind::NotFound);
    }
}
