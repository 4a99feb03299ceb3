use super::*;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, sendmsg};
use std::io::{ErrorKind, IoSlice};
use zilla_control::whose::Whose;

const LIMIT: Duration = Duration::from_secs(1);

/// A client's end of a pipe or socket, his connection, and what the daemon writes with.
fn client(socket: bool, limit: Option<Duration>) -> (OwnedFd, UnixStream, Writer) {
    let (theirs, fd) = match socket {
        true => {
            let (a, b) = UnixStream::pair().unwrap();
            (a.into(), b.into())
        }
        false => {
            let (a, b) = std::io::pipe().unwrap();
            (a.into(), b.into())
        }
    };
    let (his, conn) = UnixStream::pair().unwrap();
    let conn = Arc::new(Wary::new(conn, true));
    let writer = Stream { fd, conn, place: None }.writer(limit).unwrap();
    (theirs, his, writer)
}

/// Writes more than any pipe holds.
async fn flood(writer: &mut Writer) -> Result<()> {
    for _ in 0..2 * BUFFERS {
        writer.write(vec![Bytes::from(vec![7; CHUNK])]).await?;
    }
    writer.finish().await
}

#[test]
fn a_pipe_is_taken_by_whom_it_was_handed_over() {
    let desk = Desk::default();
    let joe = Whose::User(7);
    let place = desk.guests.place(joe);
    let (conn, _his) = UnixStream::pair().unwrap();
    let conn = Wary::new(conn, true);
    let fd = std::io::pipe().unwrap().1.into();
    let (waits, _taken) = oneshot::channel();
    desk.waiting.lock().push_back(Waiting { key: "k".into(), fd, conn, uid: 7, place, _waits: waits });
    let caller = |uid, owner| Caller { uid, owner, ..Caller::default() };
    for other in [caller(8, false), caller(0, true)] {
        assert!(desk.take("k", &other).is_err(), "{other:?}");
    }
    assert!(desk.take("other", &caller(7, false)).is_err());
    let of_one: Vec<_> = (1..GUESTS_OF_ONE).map(|_| desk.guests.place(joe).unwrap()).collect();
    assert!(desk.guests.place(joe).is_none());
    drop(desk.take("k", &caller(7, false)).unwrap());
    assert!(desk.guests.place(joe).is_some(), "it was given back");
    drop(of_one);
}

/// Whoever serves the file system of one with a name is asked when it is opened anew: a guest
/// that serves one himself would have a thread wait for as long as he likes.
#[tokio::test]
async fn a_guest_hands_over_pipes_without_a_name_and_the_owner_any() {
    let dir = tempfile::tempdir().unwrap();
    let named = dir.path().join("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &named, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    let opened = || -> OwnedFd { File::options().read(true).write(true).open(&named).unwrap().into() };
    let nameless = || -> OwnedFd { std::io::pipe().unwrap().0.into() };
    for (fd, owner, taken) in [
        (nameless(), false, true),
        (opened(), false, false),
        (nameless(), true, true),
        (opened(), true, true),
    ] {
        let (his, conn) = UnixStream::pair().unwrap();
        conn.set_nonblocking(true).unwrap();
        let fds = [fd.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&fds));
        sendmsg(&his, &[IoSlice::new(&[7; KEY_BYTES])], &mut control, SendFlags::empty()).unwrap();
        let desk = Desk::default();
        let caller =
            Caller { uid: 7, owner, pid: i32::try_from(std::process::id()).ok(), ..Caller::default() };
        let conn = tokio::net::UnixStream::from_std(conn).unwrap();
        tokio::spawn(desk.clone().take_in(conn, caller));
        his.set_nonblocking(true).unwrap();
        let his = tokio::net::UnixStream::from_std(his).unwrap();
        his.readable().await.unwrap();
        let mut answer = [0];
        let told = his.try_read(&mut answer).is_ok_and(|n| n == 1 && answer == [TAKEN]);
        assert_eq!((told, desk.waiting.lock().len() == 1), (taken, taken), "{owner}");
    }
}

#[test]
fn a_stream_s_names_tell_a_terminal_nothing() {
    let told = lines(TO_STDOUT, "receiving a\u{1b}[2J@b\r into\ttank\nas \u{9b}ü");
    let text = String::from_utf8(told).unwrap();
    assert_eq!(text, "1receiving a\\u{1b}[2J@b\\r into\ttank\n1as \\u{9b}ü\n");
}

#[test]
fn what_another_has_read_of_a_pipe_is_not_waited_for() {
    let (theirs, mut writer) = std::io::pipe().unwrap();
    let mut inlet = Inlet::of(theirs.into());
    let mut data = [0; 8];
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let read = inlet.read(&mut data).map_err(|e| e.kind());
        let _ = tell.send((read, inlet));
    });
    let (read, mut inlet) = told.recv_timeout(LIMIT * 20).expect("it waits in the call");
    assert_eq!(read, Err(ErrorKind::WouldBlock));
    writer.write_all(b"x").unwrap();
    assert_eq!(inlet.read(&mut data).unwrap(), 1);
    // The end is told by what was handed over, also of one that has a name.
    drop(writer);
    let (_his, conn) = UnixStream::pair().unwrap();
    assert!(read_chunk(&mut inlet, &conn).unwrap().is_empty());
}

#[tokio::test]
async fn who_stops_reading_is_waited_for_no_longer_than_the_limit() {
    for socket in [false, true] {
        let (_theirs, _his, mut writer) = client(socket, Some(LIMIT));
        let begun = Instant::now();
        let flooded = tokio::time::timeout(LIMIT * 20, flood(&mut writer)).await;
        let error = flooded.expect("it is waited for").unwrap_err().to_string();
        assert!(error.contains("nobody has read the stream for 1 s"), "{error}");
        assert!(begun.elapsed() >= LIMIT, "{:?}", begun.elapsed());
    }
}

#[tokio::test]
async fn a_client_that_dies_ends_its_stream_though_its_pipe_is_open_and_full() {
    for socket in [false, true] {
        let (_theirs, his, mut writer) = client(socket, None);
        let dies = async {
            tokio::time::sleep(LIMIT).await;
            drop(his);
            std::future::pending().await
        };
        let flooded = async {
            tokio::select! { f = flood(&mut writer) => f, () = dies => Ok(()) }
        };
        let ended = tokio::time::timeout(LIMIT * 20, flooded).await;
        assert_eq!(ended.expect("it is waited for").unwrap_err().errno(), Errno::Intr);
    }
}

#[tokio::test]
async fn who_reads_slowly_gets_all() {
    for socket in [false, true] {
        let (theirs, _his, mut writer) = client(socket, Some(LIMIT));
        let reader = std::thread::spawn(move || {
            let (mut file, mut len, mut data) = (File::from(theirs), 0, vec![0; CHUNK]);
            loop {
                std::thread::sleep(Duration::from_millis(1));
                match file.read(&mut data) {
                    Ok(0) => return len,
                    Ok(n) => len += n,
                    Err(e) if e.kind() == ErrorKind::Interrupted => {}
                    Err(e) => panic!("{e}"),
                }
            }
        });
        flood(&mut writer).await.unwrap();
        assert_eq!(reader.join().unwrap(), 2 * BUFFERS * CHUNK);
    }
}
