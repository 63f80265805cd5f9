//! Which codings a client takes (RFC 9110 §12.5.3).

use http::{HeaderMap, header};
use playhouse_config::model::Encoding;

use super::head::token;

/// The `available` codings that the client prefers to none, best first; equal ones in the order of `available`. Without the
/// field nothing is coded, although anything would be acceptable.
pub(super) fn preferred(
    headers: &HeaderMap,
    available: &[Encoding],
) -> impl Iterator<Item = Encoding> + use<> {
    let mut weights = Weights::default();
    for field in headers.get_all(header::ACCEPT_ENCODING) {
        weights.read(field.as_bytes());
    }
    let mut ranked = [None; CODINGS];
    for (slot, &coding) in ranked.iter_mut().zip(available) {
        let weight = weights.of(coding);
        if weight > 0 && weight >= weights.identity.unwrap_or(0) {
            *slot = Some((weight, coding));
        }
    }
    // Stable, so that the order of `available` decides between equal weights.
    ranked.sort_by_key(|ranked| std::cmp::Reverse(ranked.map_or(0, |(weight, _)| weight)));
    ranked.into_iter().flatten().map(|(_, coding)| coding)
}

/// Quality values in thousandths.
#[derive(Debug, Default)]
struct Weights {
    codings: [Option<u16>; CODINGS],
    identity: Option<u16>,
    any: Option<u16>,
}

impl Weights {
    fn read(&mut self, field: &[u8]) {
        for element in field.split(|byte| *byte == b',') {
            let mut parts = element.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
            let name = parts.next().unwrap_or_default();
            let weight = match parts.next() {
                None => Some(1000),
                Some(parameter) => quality(parameter),
            };
            // What is malformed is not asked for.
            let (Some(weight), None) = (weight, parts.next()) else { continue };
            if let Some(slot) = self.slot(name) {
                *slot = Some(weight);
            }
        }
    }

    fn slot(&mut self, name: &[u8]) -> Option<&mut Option<u16>> {
        let name = if name.eq_ignore_ascii_case(b"x-gzip") { b"gzip" } else { name };
        for coding in [Encoding::Br, Encoding::Zstd, Encoding::Gzip] {
            if name.eq_ignore_ascii_case(token(coding).as_bytes()) {
                return Some(&mut self.codings[coding as usize]);
            }
        }
        match name {
            b"*" => Some(&mut self.any),
            _ if name.eq_ignore_ascii_case(b"identity") => Some(&mut self.identity),
            _ => None,
        }
    }

    fn of(&self, coding: Encoding) -> u16 {
        self.codings[coding as usize].or(self.any).unwrap_or(0)
    }
}

/// `q=0.123` (RFC 9110 §12.4.2).
fn quality(parameter: &[u8]) -> Option<u16> {
    let (b"q=" | b"Q=", value) = parameter.split_at_checked(2)? else { return None };
    let (whole, fraction) = match value {
        [whole] => (whole, &[][..]),
        [whole, b'.', fraction @ ..] if fraction.len() <= 3 => (whole, fraction),
        _ => return None,
    };
    let mut thousandths = 0;
    for place in 0..3 {
        let digit = *fraction.get(place).unwrap_or(&b'0');
        if !digit.is_ascii_digit() {
            return None;
        }
        thousandths = thousandths * 10 + u16::from(digit - b'0');
    }
    match whole {
        b'0' => Some(thousandths),
        b'1' if thousandths == 0 => Some(1000),
        _ => None,
    }
}

/// How many [`Encoding`]s there are.
const CODINGS: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clients_order_comes_first_and_ours_where_it_has_none() {
        use Encoding::{Br, Gzip, Zstd};
        let all = [Zstd, Br, Gzip];
        let cases: &[(&[&str], &[Encoding])] = &[
            (&[], &[]),
            (&[""], &[]),
            (&["identity"], &[]),
            (&["gzip"], &[Gzip]),
            (&["GZip"], &[Gzip]),
            (&["x-gzip"], &[Gzip]),
            (&["gzip, deflate, br, zstd"], &[Zstd, Br, Gzip]),
            (&["gzip", "br"], &[Br, Gzip]),
            (&["gzip;q=1.0, br;q=0.5"], &[Gzip, Br]),
            (&["br;q=0.001, gzip;q=0.002"], &[Gzip, Br]),
            (&["br ; Q=0.8 ,gzip\t;q=0.9"], &[Gzip, Br]),
            (&["br;q=0, gzip"], &[Gzip]),
            (&["br;q=0.000"], &[]),
            (&["*"], &[Zstd, Br, Gzip]),
            (&["*;q=0.5, gzip"], &[Gzip, Zstd, Br]),
            (&["*, br;q=0"], &[Zstd, Gzip]),
            (&["*;q=0"], &[]),
            (&["identity;q=1, br;q=0.5"], &[]),
            (&["identity;q=0.5, br;q=0.5, gzip;q=0.4"], &[Br]),
            (&["identity;q=0, gzip"], &[Gzip]),
            (&["br;q=2, gzip;q=1.001, zstd;q=0.1234"], &[]),
            (&["br;q=, gzip;level=1, zstd;q=0.5;x=y"], &[]),
            (&["deflate, compress"], &[]),
        ];
        for (fields, expected) in cases {
            let mut headers = HeaderMap::new();
            for field in *fields {
                headers.append(header::ACCEPT_ENCODING, field.parse().unwrap());
            }
            assert_eq!(preferred(&headers, &all).collect::<Vec<_>>(), *expected, "{fields:?}");
        }
    }

    #[test]
    fn what_is_not_available_is_not_preferred() {
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCEPT_ENCODING, "br, gzip".parse().unwrap());
        assert_eq!(preferred(&headers, &[Encoding::Gzip]).collect::<Vec<_>>(), [Encoding::Gzip]);
    }
}
