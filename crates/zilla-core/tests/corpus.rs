//! Pools that OpenZFS wrote, read by the engine alone.
use std::path::PathBuf;
use std::sync::Arc;
use zilla_core::spa::{OpenOpts, Spa, discover};
use zilla_core::zpl::{FsProps, Unlimited, Zfs};

#[test]
fn walk() {
    let Ok(dir) = std::env::var("ZILLA_POOL") else { return };
    let env = zilla_env::real_env(2);
    let e2 = env.clone();
    env.block_on(async move {
        let env = e2;
        let found = discover(&env, &[PathBuf::from(dir)]).await.unwrap();
        for f in &found { println!("{} {} {:?} txg {} {:?}", f.name, f.guid, f.state, f.txg, f.paths); }
        let opts = OpenOpts { readonly: true, dbuf_cache: 32 << 20, arc_max: 64 << 20, ..Default::default() };
        let spa = Spa::open(&env, &found[0], opts).await.unwrap();
        println!("opened {} ub {:?}", spa.name(), spa.uberblock().txg);
        println!("{:?}", spa.metaslabs.class_stat(zilla_core::metaslab::SpaceClass::Normal));
        for h in spa.history().await.unwrap().iter().take(3) { println!("{h:?}"); }
        let name = std::env::var("ZILLA_DS").unwrap_or("tank".into());
        let ds = spa.dsl.by_name(&name).await.unwrap();
        let os = spa.dsl.objset_of(&ds).await.unwrap();
        let zfs = Zfs::open(env.clone(), os, None, Arc::new(Unlimited), FsProps::default()).await.unwrap();
        let mut todo = vec![(zfs.root(), String::new())];
        while let Some((id, path)) = todo.pop() {
            let mut cookie = 0;
            loop {
                let es = zfs.readdir(id, cookie).await.unwrap();
                if es.is_empty() { break }
                for e in es {
                    cookie = e.cookie;
                    let n = String::from_utf8_lossy(&e.name).into_owned();
                    if n == "." || n == ".." { continue }
                    let (h, a) = zfs.lookup(id, &e.name).await.unwrap();
                    println!("{path}/{n} {:o} {}", a.mode, a.size);
                    if a.is_file() { let d = zfs.read(h.id(), 0, a.size as usize).await.unwrap(); println!("   read {:?}", d.len()); }
                    if a.is_dir() { todo.push((h.id(), format!("{path}/{n}"))); }
                }
            }
        }
        spa.close(None).await.unwrap();
    });
}

#[test]
fn create() {
    let Ok(dir) = std::env::var("ZILLA_MAKE") else { return };
    let kind = std::env::var("ZILLA_KIND").unwrap_or("single".into());
    use zilla_core::vdev::{LeafSpec, PoolSpec, TopSpec, VdevKind};
    let n = match kind.as_str() { "single" => 1, "mirror" => 2, "raidz1" => 3, "raidz2" => 4, _ => 5 };
    let leaves: Vec<LeafSpec> = (0..n).map(|i| {
        let path = PathBuf::from(format!("{dir}/d{i}.img"));
        std::fs::File::create(&path).unwrap().set_len(256 << 20).unwrap();
        LeafSpec { path, disk: false }
    }).collect();
    let k = match kind.as_str() { "single" => VdevKind::File, "mirror" => VdevKind::Mirror, "raidz1" => VdevKind::Raidz{nparity:1}, "raidz2" => VdevKind::Raidz{nparity:2}, _ => VdevKind::Raidz{nparity:3} };
    let spec = PoolSpec { tops: vec![TopSpec { kind: k, leaves, is_log: false, bias: None, ashift: None }], ..Default::default() };
    let env = zilla_env::real_env(2);
    let e2 = env.clone();
    env.block_on(async move {
        let env = e2;
        let opts = zilla_core::spa::CreateOpts { name: "tank".into(), host: zilla_core::spa::Host{id: 0x1234, name: "h".into()}, comment: None, owner: (0,0), features: None, dbuf_cache: 32<<20, arc_max: 64<<20 };
        let spa = Spa::create(&env, &spec, opts).await.unwrap();
        println!("created {}", spa.uberblock().txg);
        let ds = spa.dsl.by_name("tank").await.unwrap();
        let os = spa.dsl.objset_of(&ds).await.unwrap();
        let zfs = Zfs::open(env.clone(), os, Some(spa.ctx.txgs.clone()), Arc::new(Unlimited), FsProps::default()).await.unwrap();
        for i in 0..500 {
            let cred = zilla_core::zpl::Cred { uid: 7, gid: 8, ..Default::default() };
            let (h, _) = zfs.create(zfs.root(), format!("file{i}").as_bytes(), zilla_core::zpl::NewFile::new(0o100644, cred)).await.unwrap();
            let data: Vec<u8> = (0..i * 700).map(|x| ((x * 7 + i) % 251) as u8 ^ (x / 300) as u8).collect();
            zfs.write(h.id(), 0, &data.into(), false).await.unwrap();
            if i % 100 == 0 { spa.sync().await.unwrap(); }
        }
        for i in (0..500).step_by(3) { zfs.unlink(zfs.root(), format!("file{i}").as_bytes()).await.unwrap(); }
        println!("closing {}", spa.uberblock().txg);
        drop(zfs);
        spa.close(Some(zilla_ondisk::enums::PoolState::Exported)).await.unwrap();
        println!("closed {}", spa.uberblock().txg);
    });
}
