//! Joining two pieces of sound without a click.

/// How long a join is, in samples: 5 ms, short for the ear and long against a step.
pub(crate) fn length(rate: u32) -> usize {
    rate as usize / 200
}

/// Blends the start of `next` from `continuation`: what would have followed on had nothing been taken out. Over the
/// shorter of the two.
pub(crate) fn cross(continuation: &[i16], next: &mut [i16]) {
    let over = continuation.len().min(next.len());
    for (index, (sample, before)) in next.iter_mut().zip(continuation).enumerate() {
        let weight = (index + 1) as i32;
        let total = over as i32 + 1;
        *sample = ((i32::from(*before) * (total - weight) + i32::from(*sample) * weight) / total) as i16;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_join_goes_from_one_piece_to_the_other() {
        let mut next = [0i16; 9];
        cross(&[1_000; 9], &mut next);
        assert_eq!(next, [900, 800, 700, 600, 500, 400, 300, 200, 100]);
    }

    #[test]
    fn a_join_is_as_long_as_the_shorter_piece() {
        let mut next = [100i16, 200, 300];
        cross(&[0], &mut next);
        assert_eq!(next, [50, 200, 300]);
        cross(&[], &mut next);
        assert_eq!(next, [50, 200, 300]);
    }
}
