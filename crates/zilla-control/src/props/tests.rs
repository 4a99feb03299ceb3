use super::naming::{check_dataset_name, check_entity, check_pool_name};
use super::nicenum::{Nice, format, nicebytes, nicenum, nicetime};
use super::*;
use crate::error::ErrorCode;
use proptest::prelude::*;

#[test]
fn every_row_is_unique_and_its_default_is_a_word() {
    for table in [DATASET_PROPS, POOL_PROPS, VDEV_PROPS] {
        for (i, p) in table.iter().enumerate() {
            assert!(table.iter().skip(i + 1).all(|q| q.name != p.name), "{} twice", p.name);
            if p.kind == PropKind::Index && p.visible {
                assert!(
                    p.default_value().is_some() || p.attr == PropAttr::ReadOnly || p.name == "version",
                    "{}",
                    p.name
                );
            }
        }
    }
}

#[test]
fn names_and_column_headers_both_find_a_property() {
    assert_eq!(dataset_prop("avail").unwrap().name, "available");
    assert_eq!(dataset_prop("refer").unwrap().name, "referenced");
    assert_eq!(dataset_prop("compress").unwrap().name, "compression");
    assert_eq!(pool_prop("cap").unwrap().name, "capacity");
    assert!(dataset_prop("AVAIL").is_none());
}

#[test]
fn numbers_on_disk_are_the_history_s() {
    // From histories that OpenZFS wrote: compression=15 for lz4, 10 for gzip, sync=1 for always.
    assert_eq!(dataset_prop("compression").unwrap().index_of("lz4"), Some(15));
    assert_eq!(dataset_prop("compression").unwrap().index_of("gzip"), Some(10));
    assert_eq!(dataset_prop("compression").unwrap().index_of("zstd-3"), Some(16 | 3 << 7));
    assert_eq!(dataset_prop("sync").unwrap().index_of("always"), Some(1));
    assert_eq!(dataset_prop("xattr").unwrap().word_of(2), Some("on"));
}

#[test]
fn nice_numbers() {
    for (n, text) in [
        (0, "0"),
        (1, "1"),
        (1023, "1023"),
        (1024, "1K"),
        (1025, "1.00K"),
        (1536, "1.50K"),
        (10239, "10.0K"),
        (10240, "10K"),
        (100_000, "97.7K"),
        (1_000_000, "977K"),
        (1 << 20, "1M"),
        ((1 << 20) - 1, "1024K"),
        (23_410_000_000, "21.8G"),
        (u64::MAX, "16.0E"),
    ] {
        assert_eq!(nicenum(n), text, "{n}");
    }
    assert_eq!(nicebytes(0), "0B");
    assert_eq!(nicebytes(512), "512B");
    assert_eq!(nicebytes(24576), "24K");
    assert_eq!(nicetime(0), "-");
    assert_eq!(nicetime(999), "999ns");
    assert_eq!(nicetime(999_999), "999us");
    assert_eq!(nicetime(1_500_000_000), "1s");
    assert_eq!(format(0, Nice::RawTime), "-");
}

#[test]
fn sizes() {
    for (text, n) in [
        ("0", 0),
        ("512", 512),
        ("1k", 1024),
        ("10G", 10 << 30),
        ("1.5TiB", 3 << 39),
        (".5m", 1 << 19),
        ("1.m", 1 << 20),
        ("7b", 7),
        ("15E", 15 << 60),
    ] {
        assert_eq!(parse_size(text).unwrap(), n, "{text}");
    }
    for (text, message) in [
        ("", "bad numeric value ''"),
        ("x", "bad numeric value 'x'"),
        ("-1", "bad numeric value '-1'"),
        ("1q", "invalid numeric suffix 'q'"),
        ("1bb", "invalid numeric suffix 'bb'"),
        ("1kib2", "invalid numeric suffix 'kib2'"),
        ("16E", "numeric value is too large"),
        ("1Z", "numeric value is too large"),
        ("99999999999999999999", "numeric value is too large"),
        ("16.0E", "numeric value is too large"),
    ] {
        assert_eq!(parse_size(text).unwrap_err().description(), message, "{text}");
    }
}

#[test]
fn dataset_values() {
    let set = |name, value| parse_dataset_prop(name, value, FS, false, Some(1 << 20));
    assert!(matches!(set("compression", "lz4"), Ok((PropType::Native(_), TypedValue::Num(15)))));
    assert!(matches!(set("quota", "none"), Ok((_, TypedValue::Num(0)))));
    assert!(matches!(set("filesystem_limit", "none"), Ok((_, TypedValue::Num(u64::MAX)))));
    assert!(matches!(set("com.sun:auto-snapshot", "x"), Ok((PropType::User, _))));
    let fails = |name, value| {
        let e = set(name, value).unwrap_err();
        (e.code, e.description().to_owned())
    };
    assert_eq!(fails("used", "1"), (ErrorCode::PropReadonly, "'used' is readonly".to_owned()));
    assert_eq!(fails("utf8only", "on"), (ErrorCode::PropReadonly, "'utf8only' is readonly".to_owned()));
    assert!(parse_dataset_prop("utf8only", "on", FS, true, None).is_ok());
    assert_eq!(fails("bogus", "1"), (ErrorCode::BadProp, "invalid property 'bogus'".to_owned()));
    assert_eq!(fails("atime", "maybe").1, "'atime' must be one of 'on | off'");
    assert_eq!(fails("quota", "0").1, "use 'none' to disable quota/refquota");
    assert_eq!(fails("recordsize", "1000").1, "'recordsize' must be power of 2 from 512B to 1M");
    assert_eq!(fails("mountpoint", "x").1, "'mountpoint' must be an absolute path, 'none', or 'legacy'");
    assert_eq!(fails("volsize", "1g").1, "'volsize' does not apply to datasets of this type");
    assert_eq!(fails("userused@0", "1").1, "'userused@0' is readonly");
}

#[test]
fn pool_values() {
    use PoolPropContext::*;
    assert!(parse_pool_prop("ashift", "12", Create, 1).is_ok());
    assert!(parse_pool_prop("feature@lz4_compress", "disabled", Create, 1).is_ok());
    for (name, value, context, message) in [
        (
            "ashift",
            "8",
            Create,
            "property 'ashift' number 8 is invalid, only values between 9 and 16 are allowed.",
        ),
        ("size", "1", Set, "'size' is readonly"),
        ("altroot", "/x", Set, "property 'altroot' can only be set during pool creation or import"),
        ("altroot", "x", Create, "bad alternate root 'x'"),
        ("cachefile", "x", Set, "property 'cachefile' must be empty, an absolute path, or 'none'"),
        ("readonly", "on", Set, "property 'readonly' can only be set at import time"),
        ("feature@nope", "enabled", Set, "feature 'nope' unsupported by kernel"),
        (
            "feature@lz4_compress",
            "on",
            Set,
            "property 'feature@lz4_compress' can only be set to 'enabled' or 'disabled'",
        ),
        ("version", "29", Create, "property 'version' number 29 is invalid."),
    ] {
        assert_eq!(parse_pool_prop(name, value, context, 1).unwrap_err().description(), message);
    }
}

#[test]
fn names() {
    assert!(check_pool_name("tank", false).is_ok());
    for (name, message) in [
        ("1tank", "name must begin with a letter"),
        ("ta/nk", "invalid character '/' in pool name"),
        ("mirror1", "name is reserved"),
        ("log", "name is reserved"),
        ("", "name must begin with a letter"),
    ] {
        assert_eq!(check_pool_name(name, false).unwrap_err().description(), message);
    }
    assert!(check_pool_name("mirror1", true).is_ok());
    assert!(check_entity("tank/a@b").is_ok());
    for (name, message) in [
        ("/tank", "leading slash in name"),
        ("tank/", "trailing slash in name"),
        ("tank//a", "empty component or misplaced '@' or '#' delimiter in name"),
        ("tank/a@b@c", "multiple '@' and/or '#' delimiters in name"),
        ("tank/a@b/c", "trailing slash in name"),
        ("tank/..", "parent reference, '..' is found in name"),
        ("tank/a!", "invalid character '!' in name"),
    ] {
        assert_eq!(check_entity(name).unwrap_err().description(), message, "{name}");
    }
    assert_eq!(
        check_dataset_name("tank@a", FS, true).unwrap_err().description(),
        "snapshot delimiter '@' is not expected here"
    );
}

proptest! {
    #[test]
    fn parsers_survive_anything(name in ".{0,300}", value in ".{0,300}") {
        let _ = parse_size(&value);
        let _ = check_entity(&name);
        let _ = check_pool_name(&name, false);
        for p in DATASET_PROPS {
            let _ = parse_value(p, p.types, &value);
        }
        let _ = parse_dataset_prop(&name, &value, FS, true, None);
        let _ = parse_pool_prop(&name, &value, PoolPropContext::Create, 1);
    }

    #[test]
    fn nice_numbers_fit(n: u64) {
        prop_assert!(nicenum(n).len() <= 5);
        prop_assert!(nicebytes(n).len() <= 5);
    }
}
