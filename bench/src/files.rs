//! Makes a pool full of small files, as fast as the engine can: what the import part imports.
//!
//! Through the facade and not through a mount: a million files through FUSE would be minutes of the
//! kernel's time.

use crate::engine::{Options, Result, Volume};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use zilla::{Cred, Errno, Filesystem, NewFile};
use zilla_env::block_on;
use zilla_ondisk::enums::PoolState;

const POOL: &str = "zillabench";
const FILES_IN_DIR: u64 = 1000;
const S_IFREG: u32 = 0o100_000;
const S_IFDIR: u32 = 0o040_000;
const OWNER: Cred = Cred { uid: 0, gid: 0 };

pub fn main(args: lexopt::Parser) -> Result<()> {
    let o = Options::parse(args)?;
    o.prewrite()?;
    let (env, spa) = Volume::pool(&o, o.threads)?;
    let fs = env.block_on(zilla::engine::open_filesystem(&env, &spa.dsl, POOL, false))?;
    let next = AtomicU64::new(0);
    let dirs = o.count.div_ceil(FILES_IN_DIR);
    std::thread::scope(|scope| -> Result<()> {
        let clients: Vec<_> = (0..o.threads.max(1))
            .map(|_| {
                scope.spawn(|| -> Result<()> {
                    loop {
                        let dir = next.fetch_add(1, Ordering::Relaxed);
                        if dir >= dirs {
                            return Ok(());
                        }
                        fill(&fs, dir, FILES_IN_DIR.min(o.count - dir * FILES_IN_DIR))?;
                    }
                })
            })
            .collect();
        clients.into_iter().try_for_each(|c| c.join().map_err(|_| "a client died")?)
    })?;
    drop(fs);
    // What was read of the file system last may still hold its dataset for a moment.
    for _ in 0..100 {
        match env.block_on(spa.close(Some(PoolState::Exported))) {
            Err(e) if e.is(Errno::Busy) => std::thread::sleep(std::time::Duration::from_millis(50)),
            r => return Ok(r?),
        }
    }
    Err("the pool stays busy".into())
}

/// One directory and its files, each with a few bytes in it.
fn fill(fs: &Arc<Filesystem>, dir: u64, files: u64) -> Result<()> {
    block_on(async {
        let name = format!("d{dir}");
        let parent = fs.create(fs.root(), name.as_bytes(), NewFile::new(S_IFDIR | 0o755, OWNER)).await?;
        for i in 0..files {
            let name = format!("file-{i}");
            let file = fs.create(parent.node, name.as_bytes(), NewFile::new(S_IFREG | 0o644, OWNER)).await?;
            fs.write(file.node, 0, &name.into_bytes().into(), false).await?;
        }
        Ok(())
    })
}
