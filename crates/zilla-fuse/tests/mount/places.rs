//! A mountpoint below a directory of somebody who may rename it, and put a link in its place.

use crate::common::in_memory;
use crate::privileges::may_test;
use rustix::mount::{MountFlags, UnmountFlags};
use std::fs;
use std::os::unix::fs::MetadataExt;
use zilla::FsProps;
use zilla_env::block_on;
use zilla_fuse::Options;

#[test]
fn what_others_put_at_a_mountpoint_s_path_is_not_unmounted() {
    if !may_test() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir_all(at("a/m")).unwrap();
    fs::create_dir_all(at("b/m")).unwrap();
    let (fs, env) = in_memory(FsProps::default());
    let mount = zilla_fuse::mount(fs, env, &at("a/m"), &Options::new("tank/test")).unwrap();
    assert_eq!(fs::metadata(at("a/m")).unwrap().dev(), mount.device());
    rustix::mount::mount("none", at("b/m"), "tmpfs", MountFlags::empty(), None).unwrap();
    let other = fs::metadata(at("b/m")).unwrap().dev();

    fs::rename(at("a"), at("away")).unwrap();
    std::os::unix::fs::symlink("b", at("a")).unwrap();
    for force in [false, true] {
        let why = mount.unmount(force).unwrap_err();
        assert!(why.to_string().contains("/away/m'"), "{why}");
        assert_eq!(fs::metadata(at("b/m")).unwrap().dev(), other);
        assert!(!mount.is_going(), "it is there still, elsewhere");
    }
    assert!(!zilla_fuse::clear_stale(&at("a/m")).unwrap());

    fs::remove_file(at("a")).unwrap();
    fs::rename(at("away"), at("a")).unwrap();
    mount.unmount(false).unwrap();
    block_on(mount.gone());
    rustix::mount::unmount(at("b/m"), UnmountFlags::DETACH).unwrap();
}

#[test]
fn what_lies_over_a_mount_keeps_it_and_what_was_detached_is_given_up() {
    if !may_test() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (files, env) = in_memory(FsProps::default());
    let mount = zilla_fuse::mount(files, env, dir.path(), &Options::new("tank/test")).unwrap();
    rustix::mount::mount("none", dir.path(), "tmpfs", MountFlags::empty(), None).unwrap();
    for force in [false, true] {
        let why = mount.unmount(force).unwrap_err();
        assert!(why.to_string().contains("mounted over it"), "{why}");
        assert!(!mount.is_going());
    }
    rustix::mount::unmount(dir.path(), UnmountFlags::empty()).unwrap();
    fs::write(dir.path().join("f"), "is there still").unwrap();

    // By somebody else, under an open file.
    let open = fs::File::open(dir.path().join("f")).unwrap();
    rustix::mount::unmount(dir.path(), UnmountFlags::DETACH).unwrap();
    mount.unmount(false).unwrap_err();
    assert!(!mount.is_going());
    mount.unmount(true).unwrap();
    assert!(mount.is_going());
    drop(open);
    block_on(mount.gone());
}
