"""The map: principal components as scikit-learn's, groups that are right, an SVG that stands alone."""

from xml.etree import ElementTree

import numpy as np
import pytest
from sklearn.decomposition import PCA
from sklearn.metrics import adjusted_rand_score

from indexing.corpus_map import MAX_GROUPS, OTHER, corpus_map, corpus_map_svg
from indexing.exact import normalize_rows

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def clustered():
    """300 vectors around four centres, their topics, and texts of topic words."""
    rng = np.random.default_rng(0)
    topics = rng.integers(0, 4, 300)
    vectors = rng.standard_normal((4, 16))[topics] + 0.1 * rng.standard_normal((300, 16))
    words = ["apple pear plum", "river lake pond", "steel iron zinc", "north south east"]
    return vectors.astype(np.float32), topics, [f"about {words[topic]}" for topic in topics]


def test_the_plane_is_that_of_the_first_two_principal_components(clustered):
    vectors = clustered[0]
    found = corpus_map(vectors)
    pca = PCA(2).fit(normalize_rows(vectors))
    wanted = pca.transform(normalize_rows(vectors))
    np.testing.assert_allclose(np.abs(found.points), np.abs(wanted), atol=1e-5)
    assert found.explained == pytest.approx(pca.explained_variance_ratio_.sum(), abs=1e-6)


def test_clusters_are_found_and_named_by_their_words(clustered):
    vectors, topics, texts = clustered
    found = corpus_map(vectors, texts=texts, num_clusters=4)
    assert adjusted_rand_score(topics, found.groups) == 1.0
    assert set(found.names) == {
        "apple, pear, plum",
        "lake, pond, river",
        "iron, steel, zinc",
        "east, north, south",
    }
    sizes = np.bincount(found.groups)
    assert (sizes[:-1] >= sizes[1:]).all()


def test_a_column_colours_its_most_frequent_values_and_gathers_the_rest(clustered):
    column = [None if i % 50 == 0 else f"v{i % 20}" for i in range(300)]
    found = corpus_map(clustered[0], column=column)
    assert len(found.names) == MAX_GROUPS
    assert found.names[-1] == OTHER
    for row, group in zip(found.rows, found.groups, strict=True):
        assert found.names[group] in (column[row], OTHER)


def test_a_sample_is_the_same_for_the_same_seed_and_names_its_rows(clustered):
    one, two, other = (corpus_map(clustered[0], max_points=50, seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(one.rows, two.rows)
    assert np.array_equal(one.points, two.points)
    assert np.array_equal(one.groups, two.groups)
    assert not np.array_equal(one.rows, other.rows)
    assert len(set(one.rows.tolist())) == 50


def test_the_svg_has_a_point_with_its_title_for_every_row_and_needs_nothing_else(clustered):
    found = corpus_map(clustered[0], texts=clustered[2], max_points=80)
    labels = [f'<b>"{row}" & more' for row in found.rows]
    text = corpus_map_svg(found, labels, title="My <corpus>")
    root = ElementTree.fromstring(text)
    titles = [node.text for node in root.iter(f"{SVG}title")]
    assert sorted(titles) == sorted(labels)
    assert root.get("aria-label").startswith("My <corpus>: 80 documents")
    assert "href" not in text
    assert "script" not in text
    width, height = map(float, root.get("viewBox").split()[2:])
    for circle in root.iter(f"{SVG}circle"):
        assert 0 < float(circle.get("cx")) < width
        assert 0 < float(circle.get("cy")) < height
    assert text == corpus_map_svg(found, labels, title="My <corpus>")


def test_equal_and_narrow_vectors_make_a_map_too():
    same = corpus_map(np.ones((3, 4), np.float32), num_clusters=2)
    assert np.allclose(same.points, 0)
    ElementTree.fromstring(corpus_map_svg(same, ["a", "b", "c"]))
    assert corpus_map(np.array([[1.0], [-1.0], [2.0]])).points.shape == (3, 2)


def test_what_does_not_fit_is_refused(clustered):
    vectors = clustered[0]
    with pytest.raises(ValueError, match="2 values in column for 300"):
        corpus_map(vectors, column=["a", "b"])
    with pytest.raises(ValueError, match="at least two"):
        corpus_map(vectors[:1])
    with pytest.raises(ValueError, match="between 1 and 12"):
        corpus_map(vectors, num_clusters=13)
    with pytest.raises(ValueError, match="1 labels for 300"):
        corpus_map_svg(corpus_map(vectors), ["a"])
