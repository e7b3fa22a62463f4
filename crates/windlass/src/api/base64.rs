//! Bytes as text in JSON: standard base64 with padding, strict when read.
//!
//! Only one text stands for given bytes: anything else is refused, so that what was stored can be compared.

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
const NONE: u8 = 0xff;

const VALUES: [u8; 256] = {
    let mut values = [NONE; 256];
    let mut at = 0;
    while at < 64 {
        values[ALPHABET[at] as usize] = at as u8;
        at += 1;
    }
    values
};

pub fn encode(bytes: &[u8]) -> String {
    let mut text = Vec::with_capacity(bytes.len().div_ceil(3) * 4);
    encode_into(bytes, &mut text);
    String::from_utf8(text).unwrap_or_default()
}

/// Appends the text of `bytes`; pieces join to one text as long as all but the last have a multiple of three bytes.
pub fn encode_into(bytes: &[u8], text: &mut Vec<u8>) {
    let digit = |bits: u32| ALPHABET[(bits & 63) as usize];
    let mut threes = bytes.chunks_exact(3);
    for three in &mut threes {
        let bits = u32::from(three[0]) << 16 | u32::from(three[1]) << 8 | u32::from(three[2]);
        text.extend_from_slice(&[digit(bits >> 18), digit(bits >> 12), digit(bits >> 6), digit(bits)]);
    }
    match *threes.remainder() {
        [one] => {
            let bits = u32::from(one) << 16;
            text.extend_from_slice(&[digit(bits >> 18), digit(bits >> 12), b'=', b'=']);
        }
        [one, two] => {
            let bits = u32::from(one) << 16 | u32::from(two) << 8;
            text.extend_from_slice(&[digit(bits >> 18), digit(bits >> 12), digit(bits >> 6), b'=']);
        }
        _ => {}
    }
}

/// The bytes, or nothing where the text is not exactly what `encode` would give.
pub fn decode(text: &str) -> Option<Vec<u8>> {
    let text = text.as_bytes();
    if !text.len().is_multiple_of(4) {
        return None;
    }
    let padding = text.iter().rev().take(2).take_while(|byte| **byte == b'=').count();
    let digits = &text[..text.len() - padding];
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let mut fours = digits.chunks_exact(4);
    for four in &mut fours {
        let bits = read_digits(four)?;
        bytes.extend_from_slice(&[(bits >> 16) as u8, (bits >> 8) as u8, bits as u8]);
    }
    let rest = fours.remainder();
    if !rest.is_empty() {
        let kept = rest.len() - 1;
        let bits = read_digits(rest)? << (6 * (4 - rest.len()));
        let all = [(bits >> 16) as u8, (bits >> 8) as u8, bits as u8];
        if kept == 0 || all[kept] != 0 {
            return None;
        }
        bytes.extend_from_slice(&all[..kept]);
    }
    Some(bytes)
}

fn read_digits(digits: &[u8]) -> Option<u32> {
    digits.iter().try_fold(0, |bits, digit| match VALUES[usize::from(*digit)] {
        NONE => None,
        value => Some(bits << 6 | u32::from(value)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_comes_back_and_known_texts_hold() {
        assert_eq!(encode(b"foobar"), "Zm9vYmFy");
        assert_eq!(encode(b"fooba"), "Zm9vYmE=");
        assert_eq!(encode(b"foob"), "Zm9vYg==");
        let all: Vec<u8> = (0..=255).chain(0..=255).collect();
        for end in 0..all.len() {
            assert_eq!(decode(&encode(&all[..end])).unwrap(), all[..end]);
        }
    }

    #[test]
    fn only_the_one_true_text_is_read() {
        for bad in ["Z", "Zg", "Zg=", "Zg===", "=", "====", "Zh==", "Zm9vYmF=", "Zm9v YmFy", "Zm9vYg==Zg==", "Z-9v", "Zg==\n"] {
            assert_eq!(decode(bad), None, "{bad}");
        }
        assert_eq!(decode(""), Some(Vec::new()));
    }
}
