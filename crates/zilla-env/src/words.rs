//! Errors of the system in the words that people know from other programs.

use std::io;

/// The text of an error as strerror(3) has it. The standard library adds the number to it, which
/// tells people nothing.
pub fn strerror(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}

#[cfg(test)]
mod tests {
    use super::strerror;
    use std::io;

    #[test]
    fn the_number_is_left_out_and_other_texts_stay() {
        assert_eq!(strerror(&io::Error::from_raw_os_error(2)), "No such file or directory");
        assert_eq!(strerror(&io::Error::other("it is closed")), "it is closed");
    }
}
