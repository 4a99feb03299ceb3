//! One suite for every way of doing I/O: what holds for a device must hold for all of them.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::FutureExt;
use zilla_env::{
    Completion, Device, Env, Io, IoBackend, IoBuf, IoOp, MemDevice, OpenMode, RealConfig, own_thread,
    real_env_with, waiting_here,
};

const SIZE: u64 = 8 << 20;
const RW: OpenMode = OpenMode { write: true, exclusive: true };

fn env(io: IoBackend) -> Env {
    real_env_with(RealConfig { threads: 2, io, direct: true })
}

/// Runs `test` with a new file in the target's disk file system and one in memory, by every
/// backend.
fn everywhere(test: impl Fn(&Env, &Path)) {
    for io in [IoBackend::Inline, IoBackend::Threads, IoBackend::Uring, IoBackend::Auto] {
        for base in [env!("CARGO_TARGET_TMPDIR"), "/dev/shm"] {
            let env = env(io);
            let dir = tempfile::tempdir_in(base).unwrap();
            let path = dir.path().join("disk");
            env.block_on(env.opener.create_file(&path, SIZE)).unwrap();
            if io == IoBackend::Uring && env.block_on(env.open(&path, RW)).is_err() {
                println!("io_uring is refused here: its runs are skipped");
                continue;
            }
            test(&env, &path);
        }
    }
}

fn with_devices(test: impl Fn(&Env, Arc<dyn Device>)) {
    everywhere(|env, path| test(env, env.block_on(env.open(path, RW)).unwrap()));
    test(&env(IoBackend::Auto), Arc::new(MemDevice::new(SIZE)));
}

fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| ((i + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

#[test]
fn what_is_written_is_read() {
    with_devices(|env, dev| {
        env.block_on(async {
            assert_eq!(dev.size(), SIZE);
            let data = pattern(1, 300_000);
            // Aligned and unaligned offsets, lengths and memory.
            for (offset, from, len) in
                [(0, 0, 131_072), (4096, 1, 4096), (512, 3, 512), (777, 5, 33_333), (65_536, 512, 1024)]
            {
                let part = Bytes::from(data.clone()).slice(from..from + len);
                dev.write(offset, part.clone()).await.unwrap();
                assert!(
                    dev.read(offset, len).await.unwrap()[..] == part[..],
                    "{offset} {len} {:?}",
                    dev.info()
                );
            }
            dev.flush().await.unwrap();
            assert_eq!(dev.read(SIZE, 0).await.unwrap().len(), 0);
            dev.write(5, Bytes::new()).await.unwrap();
        });
    });
}

/// What a thread asks to do itself is done when the submission returns, whatever the way of doing
/// I/O.
#[test]
fn a_patient_thread_does_its_own_io() {
    with_devices(|_, dev| {
        let data = Bytes::from(pattern(4, 8192));
        own_thread(Duration::MAX, || {
            let wrote = waiting_here(Duration::ZERO, || dev.write(4096, data.clone()));
            assert!(wrote.now_or_never().is_some_and(|r| r.is_ok()), "{:?}", dev.info());
            let flushed = waiting_here(Duration::ZERO, || dev.flush());
            assert!(flushed.now_or_never().is_some_and(|r| r.is_ok()), "{:?}", dev.info());
            let read = waiting_here(Duration::ZERO, || dev.read(4096, 8192));
            assert!(read.now_or_never().is_some_and(|r| r.unwrap()[..] == data[..]));
        });
    });
}

#[test]
fn gathering_writes_keep_their_order() {
    with_devices(|env, dev| {
        env.block_on(async {
            let data = pattern(2, 200_000);
            for piece in [4096usize, 1000, 7] {
                let whole = Bytes::from(data.clone()).slice(..if piece == 7 { 7 * 2000 } else { data.len() });
                let pieces =
                    (0..whole.len()).step_by(piece).map(|i| whole.slice(i..(i + piece).min(whole.len())));
                dev.io(IoOp::Write { offset: 8192, data: pieces.collect() }).await.unwrap();
                assert!(dev.read(8192, whole.len()).await.unwrap()[..] == whole[..], "pieces of {piece}");
            }
        });
    });
}

#[test]
fn batches_complete_in_full_and_in_order() {
    with_devices(|env, dev| {
        env.block_on(async {
            let n = 600u64;
            let block = |i: u64| IoBuf::from_slice(&pattern(i, 4096)).into_bytes();
            let writes =
                (0..n).map(|i| IoOp::Write { offset: i * 8192, data: [block(i)].into_iter().collect() });
            assert!(dev.batch(writes.collect()).await.iter().all(|r| matches!(r, Ok(None))));
            let reads = (0..n).map(|i| IoOp::Read { offset: i * 8192, buf: IoBuf::scratch(4096) });
            for (i, result) in dev.batch(reads.collect()).await.into_iter().enumerate() {
                assert_eq!(result.unwrap().unwrap()[..], block(i as u64)[..], "block {i}");
            }
            assert!(dev.batch(Vec::new()).await.is_empty());
        });
    });
}

#[test]
fn many_tasks_share_a_device() {
    with_devices(|env, dev| {
        let tasks: Vec<_> = (0..8u64)
            .map(|t| {
                let dev = dev.clone();
                env.spawn_with_result(async move {
                    for round in 0..20 {
                        let data = IoBuf::from_slice(&pattern(t * 1000 + round, 65_536)).into_bytes();
                        dev.write(t << 20, data.clone()).await.unwrap();
                        assert!(dev.read(t << 20, 65_536).await.unwrap()[..] == data[..]);
                    }
                })
            })
            .collect();
        env.block_on(async {
            for task in tasks {
                task.await;
            }
        });
    });
}

#[test]
fn nothing_leaves_the_device() {
    with_devices(|env, dev| {
        env.block_on(async {
            let data = Bytes::from(vec![1; 8192]);
            for offset in [SIZE - 4096, SIZE, u64::MAX - 10] {
                assert!(dev.write(offset, data.clone()).await.is_err());
                assert_eq!(
                    dev.read(offset, 8192).await.unwrap_err().kind(),
                    std::io::ErrorKind::UnexpectedEof
                );
                assert!(dev.discard(offset, 8192).await.is_err());
                assert!(dev.write_zeroes(offset, 8192).await.is_err());
            }
            assert_eq!(dev.refresh_size().unwrap(), SIZE);
        });
    });
}

#[test]
fn zeroes_and_discards() {
    with_devices(|env, dev| {
        env.block_on(async {
            let data = Bytes::from(vec![9; 1 << 20]);
            dev.write(0, data.clone()).await.unwrap();
            dev.write_zeroes(1000, 500_000).await.unwrap();
            dev.write_zeroes(7, 0).await.unwrap();
            dev.discard(600_064, 100_000).await.unwrap();
            dev.discard(0, 0).await.unwrap();
            let back = dev.read(0, 1 << 20).await.unwrap();
            assert!(back[..1000].iter().chain(&back[501_000..600_064]).all(|&b| b == 9));
            assert!(back[1000..501_000].iter().all(|&b| b == 0));
            assert!(back[700_064..].iter().all(|&b| b == 9));
        });
    });
}

#[test]
fn a_device_has_one_owner_and_may_grow() {
    everywhere(|env, path| {
        env.block_on(async {
            let dev = env.open(path, RW).await.unwrap();
            let Err(err) = env.open(path, RW).await else { panic!("two owners of {}", path.display()) };
            assert_eq!(err.kind(), std::io::ErrorKind::ResourceBusy);
            let holder = format!("process {} (", std::process::id());
            assert!(err.to_string().contains(&holder), "{err}");
            std::fs::File::options().write(true).open(path).unwrap().set_len(2 * SIZE).unwrap();
            assert_eq!(dev.size(), SIZE);
            assert_eq!(dev.refresh_size().unwrap(), 2 * SIZE);
            dev.write(SIZE, Bytes::from(vec![1; 4096])).await.unwrap();
            drop(dev);
            let dev = env.open(path, OpenMode::default()).await.unwrap();
            assert!(!dev.info().writable);
            let refused = dev.write(0, Bytes::from(vec![1; 4096])).await.unwrap_err();
            assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
        });
    });
}

#[test]
fn a_lock_that_outlives_its_process_is_waited_for() {
    let env = env(IoBackend::Auto);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    env.block_on(env.opener.create_file(&path, SIZE)).unwrap();
    // `flock` takes it and ends; `sleep` has the file open still.
    let script = r#"exec 9<>"$0"; flock 9; sleep 0.5 &"#;
    let status = std::process::Command::new("sh").args(["-c", script]).arg(&path).status().unwrap();
    assert!(status.success());
    let begin = Instant::now();
    env.block_on(env.open(&path, RW)).unwrap();
    assert!(begin.elapsed() > Duration::from_millis(100), "it was not locked: this proves nothing");
}

#[test]
fn what_a_child_has_open_until_it_runs_is_waited_for() {
    let env = env(IoBackend::Auto);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    env.block_on(env.opener.create_file(&path, SIZE)).unwrap();
    // The lock is this process', and goes a moment later.
    let file = std::fs::File::open(&path).unwrap();
    file.lock().unwrap();
    let child = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        drop(file);
    });
    env.block_on(env.open(&path, RW)).unwrap();
    child.join().unwrap();
}

#[test]
fn a_file_cut_short_under_us_is_an_error() {
    everywhere(|env, path| {
        env.block_on(async {
            let dev = env.open(path, RW).await.unwrap();
            std::fs::File::options().write(true).open(path).unwrap().set_len(4096).unwrap();
            let err = dev.read(0, 8192).await.unwrap_err();
            assert_eq!(err.kind(), std::io::ErrorKind::UnexpectedEof);
        });
    });
}

#[test]
fn opening_what_is_no_device() {
    let env = env(IoBackend::Auto);
    env.block_on(async {
        assert!(env.open(Path::new("/"), RW).await.is_err());
        assert!(env.open(Path::new("/dev/null"), RW).await.is_err());
        assert!(env.open(Path::new("/nonexistent"), RW).await.is_err());
    });
}

#[test]
fn small_files_are_replaced_whole() {
    let env = env(IoBackend::Auto);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cache");
    env.block_on(async {
        let opener = &env.opener;
        opener.write_file(&path, b"one".to_vec()).await.unwrap();
        opener.write_file(&path, b"second".to_vec()).await.unwrap();
        assert_eq!(opener.read_file(&path).await.unwrap(), b"second");
        let names = opener.list(dir.path()).await.unwrap();
        assert_eq!(names.len(), 1);
        assert_eq!(names[0].path, path);
        opener.create_file(&path, 5).await.unwrap_err();
        opener.remove_file(&path).await.unwrap();
    });
}

#[test]
fn sleeping_timeouts_and_panics_of_tasks() {
    let env = env(IoBackend::Auto);
    let start = Instant::now();
    let sleepers: Vec<_> = [30, 10, 20]
        .map(|ms| {
            let e = env.clone();
            env.spawn_with_result(async move { e.sleep(Duration::from_millis(ms)).await })
        })
        .into();
    env.block_on(async {
        for s in sleepers {
            s.await;
        }
        let never = std::future::pending::<()>();
        assert!(env.timeout(Duration::from_millis(5), never).await.is_err());
        assert_eq!(env.timeout(Duration::from_secs(600), async { 7 }).await, Ok(7));
    });
    assert!(start.elapsed() >= Duration::from_millis(35));
    let bug = env.spawn_with_result(async { panic!("a bug") });
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| env.block_on(bug)));
    assert!(caught.is_err());
    assert_ne!(env.rng.u64(), env.rng.u64());
}

/// However many of its operations never end.
#[test]
fn a_device_that_hangs_keeps_no_other_from_working() {
    let env = env(IoBackend::Threads);
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let open = |name: &str| {
        let path = dir.path().join(name);
        env.block_on(env.opener.create_file(&path, SIZE)).unwrap();
        env.block_on(env.open(&path, RW)).unwrap()
    };
    let (hanging, other) = (open("hanging"), open("other"));
    let (release, released) = std::sync::mpsc::channel::<()>();
    let released = Arc::new(parking_lot::Mutex::new(released));
    // A thread whose operation does not end is as good as one whose completion does not.
    let hang = (0..200).map(|_| {
        let released = released.clone();
        let done = Completion::call(move |_| {
            let _ = released.lock().recv();
        });
        Io { op: IoOp::Flush, done }
    });
    hanging.submit(hang.collect());
    let begun = Instant::now();
    let data = Bytes::from(pattern(9, 4096));
    let (done, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let io = async { other.write(0, data.clone()).await.is_ok() && other.flush().await.is_ok() };
        let _ = done.send(zilla_env::block_on(io));
    });
    assert_eq!(told.recv_timeout(Duration::from_secs(20)), Ok(true), "after {:?}", begun.elapsed());
    drop(release);
}
