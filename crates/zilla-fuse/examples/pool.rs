//! Makes a pool of one file, or opens it if it is there, and mounts its root file system: the whole way a file's bytes go, without the daemon.
//!
//! `pool IMAGE MOUNTPOINT [mirror|raidz1|raidz2] [posixacl]`, until it is unmounted; then the pool is exported.

use std::path::{Path, PathBuf};
use zilla_core::spa::{CreateOpts, Host, OpenOpts, Spa, discover};
use zilla_core::vdev::{LeafSpec, PoolSpec, TopSpec, VdevKind};
use zilla_env::{Env, real_env};
use zilla_fuse::Options;
use zilla_ondisk::enums::PoolState;

async fn pool(env: &Env, image: &Path, args: &[String]) -> zilla::Result<std::sync::Arc<Spa>> {
    let host = Host { id: 1, name: "example".into() };
    if image.exists() {
        let found = discover(env, &[image.parent().unwrap_or(Path::new(".")).to_path_buf()]).await?;
        let found = found.first().ok_or_else(|| zilla::Error::no_ent("no pool there"))?;
        let opts =
            OpenOpts { force: true, host, dbuf_cache: 128 << 20, arc_max: 512 << 20, ..OpenOpts::default() };
        return Spa::open(env, found, opts).await;
    }
    let (kind, n) =
        match args.iter().map(String::as_str).find(|a| a.starts_with("mirror") || a.starts_with("raidz")) {
            Some("mirror") => (VdevKind::Mirror, 2),
            Some("raidz1") => (VdevKind::Raidz { nparity: 1 }, 3),
            Some("raidz2") => (VdevKind::Raidz { nparity: 2 }, 4),
            _ => (VdevKind::File, 1),
        };
    let mut leaves = Vec::new();
    for i in 0..n {
        let path = if i == 0 { image.to_path_buf() } else { image.with_extension(format!("{i}")) };
        std::fs::File::create(&path)?.set_len(2 << 30)?;
        leaves.push(LeafSpec { path, disk: false });
    }
    let top = TopSpec { kind, leaves, is_log: false, bias: None, ashift: None };
    let spec = PoolSpec { tops: vec![top], ..PoolSpec::default() };
    let opts = CreateOpts {
        name: "example".into(),
        host,
        comment: None,
        owner: (0, 0),
        features: None,
        dbuf_cache: 128 << 20,
        arc_max: 512 << 20,
    };
    Spa::create(env, &spec, opts).await
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [image, mountpoint, ..] = &args[..] else { return Err("which image, and where to mount it?".into()) };
    let image = PathBuf::from(image);
    let env = real_env(2);
    let run = env.clone();
    env.block_on(async {
        let env = run;
        let spa = pool(&env, &image, &args).await?;
        let fs = zilla::open_filesystem(&env, &spa.dsl, &spa.name(), false).await?;
        if args.iter().any(|a| a == "posixacl") {
            let zfs = fs.zfs();
            zfs.set_props(zilla::FsProps { posix_acl: true, ..zfs.props() });
        }
        let mount = zilla_fuse::mount(fs, env, Path::new(mountpoint), &Options::new(spa.name()))?;
        mount.gone().await;
        spa.close(Some(PoolState::Exported)).await?;
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    })
    .map_err(|e| e.to_string().into())
}
