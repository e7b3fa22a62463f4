//! Every kind of data that has ever been taken for code, or been bent on its way; one corpus for every runner.

pub(crate) fn payloads() -> Vec<Vec<u8>> {
    let texts = [
        "",
        "plain",
        "two  words ",
        "a\nb\n",
        "a\rb\r",
        "'\"$(id)`id`;&|<>*?~",
        "-rf",
        "--",
        "-n",
        "-e \\n\\x41\\0",
        "%s%d",
        "\0a\0",
        "{}",
        "{id}",
        "{\"status\":\"fail\"}",
        "ok",
        "@j-1 ok",
        "\r\n\r\nGET /",
        "grüße 🦀",
    ];
    let mut all: Vec<Vec<u8>> = texts.iter().map(|text| text.as_bytes().to_vec()).collect();
    all.extend([vec![0xff, 0xfe, 0, 0xc3], b"caf\xe9".to_vec(), (0..=255).collect(), vec![b'x'; 1 << 20]]);
    all
}
