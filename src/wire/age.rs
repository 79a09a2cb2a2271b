//! Ages, as `metav1` prints them in Tables.

use super::derive::unix_seconds;

/// An instant, in nanoseconds since 1970.
pub(super) type UnixNanoseconds = i128;

const SECOND: i128 = 1_000_000_000;
/// Go's zero time, which counts as none.
const ZERO_TIME: UnixNanoseconds = -62_135_596_800 * SECOND;
const UNKNOWN: &str = "<unknown>";

/// Returns the age of a time in text, as the apiserver prints it for a column of type `date`. `None` if Go may read the
/// text in another way.
pub(super) fn age_of(text: &str, now: UnixNanoseconds) -> Option<String> {
    if matches!(text, "" | "null") {
        return Some(UNKNOWN.to_owned());
    }
    match parse(text) {
        Some(ZERO_TIME) => Some(UNKNOWN.to_owned()),
        // Go's durations end at 292 years.
        Some(time) => {
            let age = (now - time).clamp(i64::MIN.into(), i64::MAX.into());
            Some(human_duration(i64::try_from(age).unwrap_or_default()))
        }
        // Go's parser accepts more than RFC 3339, but nothing that begins in another way.
        None if !begins_with_date(text) => Some("<invalid>".to_owned()),
        None => None,
    }
}

fn begins_with_date(text: &str) -> bool {
    let digits = [0, 1, 2, 3, 5, 6, 8, 9];
    let is_digit = |at: usize| text.as_bytes().get(at).is_some_and(u8::is_ascii_digit);
    digits.into_iter().all(is_digit) && text.as_bytes().get(10) == Some(&b'T')
}

/// Parses an RFC 3339 time with an optional fraction.
fn parse(text: &str) -> Option<UnixNanoseconds> {
    let (time, rest) = text.split_at_checked(19)?;
    let seconds = unix_seconds(&format!("{time}Z")).ok()?;
    let (fraction, zone) = match rest.strip_prefix('.') {
        None => (0, rest),
        Some(rest) => {
            let len = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
            let digits = rest.get(..len).filter(|digits| (1..=9).contains(&digits.len()))?;
            (format!("{digits:0<9}").parse().ok()?, &rest[len..])
        }
    };
    let part = |text: &str, end: i128| {
        let is_plain = text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse::<i128>().ok().filter(|part| is_plain && *part < end)
    };
    let minutes = |zone: &str| {
        let (hours, minutes) = zone.split_once(':')?;
        Some(part(hours, 24)? * 60 + part(minutes, 60)?)
    };
    let offset = match zone.split_at_checked(1)? {
        ("Z", "") => 0,
        ("+", zone) => minutes(zone)?,
        ("-", zone) => -minutes(zone)?,
        _ => return None,
    };
    Some((i128::from(seconds) - offset * 60) * SECOND + fraction)
}

/// Formats a duration with two or three significant figures (R-PRINT-1).
fn human_duration(nanoseconds: i64) -> String {
    let seconds = nanoseconds / 1_000_000_000;
    let (minutes, hours) = (seconds / 60, seconds / 3_600);
    let days = hours / 24;
    let pair = |large: i64, unit: char, small: i64, small_unit: char| match small {
        0 => format!("{large}{unit}"),
        small => format!("{large}{unit}{small}{small_unit}"),
    };
    match seconds {
        ..-1 => "<invalid>".to_owned(),
        -1 => "0s".to_owned(),
        0..120 => format!("{seconds}s"),
        _ if minutes < 10 => pair(minutes, 'm', seconds % 60, 's'),
        _ if minutes < 180 => format!("{minutes}m"),
        _ if hours < 8 => pair(hours, 'h', minutes % 60, 'm'),
        _ if hours < 48 => format!("{hours}h"),
        _ if days < 8 => pair(days, 'd', hours % 24, 'h'),
        _ if days < 365 * 2 => format!("{days}d"),
        _ if days < 365 * 8 => pair(days / 365, 'y', days % 365, 'd'),
        _ => format!("{}y", days / 365),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_the_units_of_metav1() {
        for (seconds, expected) in [
            (-2, "<invalid>"),
            (-1, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (121, "2m1s"),
            (599, "9m59s"),
            (600, "10m"),
            (10_799, "179m"),
            (10_800, "3h"),
            (10_860, "3h1m"),
            (28_800, "8h"),
            (172_799, "47h"),
            (172_800, "2d"),
            (176_400, "2d1h"),
            (691_200, "8d"),
            (63_071_999, "729d"),
            (63_072_000, "2y"),
            (63_158_400, "2y1d"),
            (252_288_000, "8y"),
        ] {
            assert_eq!(human_duration(seconds * 1_000_000_000), expected, "{seconds}");
        }
    }

    #[test]
    fn times_are_read_as_go_reads_them() {
        // 2023-11-14T22:13:20Z
        let now = 1_700_000_000 * SECOND;
        for (text, expected) in [
            ("2023-11-14T22:13:18Z", Some("2s")),
            ("2023-11-14T22:13:18.999999999Z", Some("1s")),
            ("2023-11-15T00:13:18+02:00", Some("2s")),
            ("2023-11-14T21:43:18-00:30", Some("2s")),
            ("2023-11-14T22:13:22.5Z", Some("<invalid>")),
            ("1066-10-14T00:00:00Z", Some("292y")),
            ("0001-01-01T01:00:00+01:00", Some("<unknown>")),
            ("null", Some("<unknown>")),
            ("2023-11-14", Some("<invalid>")),
            ("2023-11-14 22:13:18Z", Some("<invalid>")),
            // Go reads some of these, and they are not worth knowing which.
            ("2023-11-14T2:13:18Z", None),
            ("2023-11-14T22:13:18,5Z", None),
            ("2023-11-31T22:13:18Z", None),
            ("2023-11-14T22:13:18", None),
            ("2023-11-14T22:13:18+24:00", None),
        ] {
            assert_eq!(age_of(text, now).as_deref(), expected, "{text}");
        }
    }
}
