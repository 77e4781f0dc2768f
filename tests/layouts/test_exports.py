"""What `layouts` makes public, and in which state a reader finds it."""

import layouts


def test_all_lists_exactly_the_public_names() -> None:
    public = {name for name in vars(layouts) if not name.startswith("_")}
    assert len(layouts.__all__) == len(set(layouts.__all__))
    assert set(layouts.__all__) == public


def test_constants_come_first_then_classes_then_functions_each_in_order() -> None:
    def rank(name: str) -> tuple[int, str]:
        return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)

    assert layouts.__all__ == sorted(layouts.__all__, key=rank)


def test_errors_are_one_tree_under_the_public_name() -> None:
    names = ["CorruptLayout", "InvalidLayout", "TooLarge", "UnknownFeature"]
    for name in names:
        error = getattr(layouts, name)
        assert issubclass(error, layouts.LayoutError)
        assert error.__module__ == "layouts"
    assert issubclass(layouts.CorruptLayout, layouts.InvalidLayout)
    assert issubclass(layouts.LayoutError, ValueError)
