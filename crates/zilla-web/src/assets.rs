//! The page's files, as they lie in the program.

/// Path, type, contents.
pub const ASSETS: &[(&str, &str, &[u8])] = &[
    ("/", "text/html; charset=utf-8", include_bytes!("../assets/index.html")),
    ("/page.js", "text/javascript; charset=utf-8", include_bytes!("../assets/page.js")),
    ("/draw.js", "text/javascript; charset=utf-8", include_bytes!("../assets/draw.js")),
    ("/page.css", "text/css; charset=utf-8", include_bytes!("../assets/page.css")),
    ("/icon.svg", "image/svg+xml", include_bytes!("../assets/icon.svg")),
];

/// What a browser may do with the page: run and show what is ours, and be shown in nobody's frame.
pub const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                          base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_small_and_asks_nobody_else() {
        let total: usize = ASSETS.iter().map(|(.., bytes)| bytes.len()).sum();
        assert!(total < 200 << 10, "{total} bytes");
        for (path, _, bytes) in ASSETS {
            let text = std::str::from_utf8(bytes).unwrap();
            let foreign =
                text.lines().find(|l| l.contains("://") && !l.contains("http://www.w3.org/2000/svg"));
            assert_eq!(foreign, None, "{path}");
            for inline in ["<script>", "style=\"", "onclick=", "innerHTML +=", "eval("] {
                assert!(!text.contains(inline), "{path} has {inline}, which the policy forbids");
            }
        }
    }

    #[test]
    fn whatever_the_page_names_is_there() {
        let html = std::str::from_utf8(ASSETS[0].2).unwrap();
        for attribute in ["src=\"", "href=\"/"] {
            for found in html.split(attribute).skip(1) {
                let path = found.split('"').next().unwrap_or_default();
                let path = format!("/{}", path.trim_start_matches('/'));
                assert!(ASSETS.iter().any(|(p, ..)| *p == path), "{path}");
            }
        }
    }
}
