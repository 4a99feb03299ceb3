pub fn main(_args: Vec<String>) -> u8 {
    2
}
