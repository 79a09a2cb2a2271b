/// Defines an enum each variant of which has a fixed text, such as a metric label: `Variant = "text",`.
///
/// `as_str` returns the text, and `ALL` has all variants in the order of their definition.
#[macro_export]
macro_rules! labelled_enum {
    (
        $(#[$attribute:meta])*
        $visibility:vis enum $name:ident {
            $($(#[$variant_attribute:meta])* $variant:ident = $label:literal,)+
        }
    ) => {
        $(#[$attribute])*
        $visibility enum $name {
            $($(#[$variant_attribute])* $variant,)+
        }

        #[allow(dead_code, reason = "not every enum needs both")]
        impl $name {
            /// All variants, in the order of their definition.
            $visibility const ALL: [Self; [$($label),+].len()] = [$(Self::$variant),+];

            /// Returns the text of the variant.
            $visibility fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $label,)+
                }
            }
        }
    };
}

#[cfg(test)]
mod tests {
    labelled_enum! {
        /// A direction.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        enum Direction {
            #[default]
            Up = "up",
            /// Away from the sky.
            Down = "towards_ground",
        }
    }

    #[test]
    fn labels_are_those_of_the_definition_in_its_order() {
        assert_eq!(Direction::ALL, [Direction::Up, Direction::Down]);
        assert_eq!(Direction::ALL.map(Direction::as_str), ["up", "towards_ground"]);
        assert_eq!(Direction::default(), Direction::Up);
    }
}
