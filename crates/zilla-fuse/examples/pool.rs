//! Makes a pool of one file, or opens it if it is there, and mounts its root file system: the whole
//! way a file's bytes go, without the daemon.
//!
//! `pool IMAGE MOUNTPOINT [mirror|raidz1|raidz2] [posixacl]`, until it is unmounted; then the pool
//! is exported.

use std::path::{Path, PathBuf};
use zilla::{Import, NewPool, NewVdev, Pool};
use zilla_env::{Env, real_env};
use zilla_fuse::Options;

const NAME: &str = "example";
/// Bytes of blocks in memory.
const MEMORY: u64 = 512 << 20;

async fn pool(env: &Env, image: &Path, args: &[String]) -> zilla::Result<Pool> {
    if image.exists() {
        let place = image.parent().unwrap_or(Path::new("."));
        let how = Import { force: true, memory: MEMORY, ..Import::default() };
        return Pool::import(env, &[place], NAME, how).await;
    }
    let images = |n: usize| -> std::io::Result<Vec<PathBuf>> {
        let path = |i| if i == 0 { image.to_path_buf() } else { image.with_extension(format!("{i}")) };
        let all: Vec<PathBuf> = (0..n).map(path).collect();
        all.iter().try_for_each(|path| std::fs::File::create(path)?.set_len(2 << 30))?;
        Ok(all)
    };
    let kind = args.iter().map(String::as_str).find(|a| a.starts_with("mirror") || a.starts_with("raidz"));
    let vdev = match kind {
        Some("mirror") => NewVdev::mirror(images(2)?),
        Some("raidz1") => NewVdev::raidz(1, images(3)?),
        Some("raidz2") => NewVdev::raidz(2, images(4)?),
        _ => {
            images(1)?;
            NewVdev::single(image)
        }
    };
    Pool::create(env, NewPool::new(NAME).vdev(vdev).memory(MEMORY)).await
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [image, mountpoint, ..] = &args[..] else { return Err("which image, and where to mount it?".into()) };
    let image = PathBuf::from(image);
    let env = real_env(2);
    let run = env.clone();
    env.block_on(async {
        let env = run;
        let pool = pool(&env, &image, &args).await?;
        let fs = pool.by_name(NAME).await?.open_filesystem(false).await?;
        if args.iter().any(|a| a == "posixacl") {
            let zfs = fs.zfs();
            zfs.set_props(zilla::FsProps { posix_acl: true, ..zfs.props() });
        }
        let mount = zilla_fuse::mount(fs, env, Path::new(mountpoint), &Options::new(NAME))?;
        mount.gone().await;
        pool.export().await?;
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    })
    .map_err(|e| e.to_string().into())
}
