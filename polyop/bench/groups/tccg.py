"""Tensor contractions of the TCCG benchmark (Springer and Bientinesi, 2016), row-major.

Each line: the name there (column-major), the equation on the same bytes in row-major order, and the sizes for f32. Sizes of
coupled cluster are cut (to a half where the result has three indices, a quarter where it has four; with
triples i, j and k to a half), so that a call takes milliseconds rather than seconds.
"""

from __future__ import annotations

CONTRACTIONS = (
    # integral transforms and tensor times matrix
    ("abj-bka-kj", "akb,jk->jba", "a=384 b=384 j=24 k=384"),
    ("abjc-cbka-kj", "akbc,jk->cjba", "a=96 b=84 c=96 j=24 k=96"),
    ("abjc-kbac-jk", "cabk,kj->cjba", "a=96 b=84 c=84 j=24 k=96"),
    ("adbjc-cbdka-kj", "akdbc,jk->cjbda", "a=48 b=36 c=48 d=36 j=24 k=48"),
    ("aqrs-pa-pqrs", "ap,srqp->srqa", "a=96 p=96 q=84 r=84 s=84"),
    ("abcs-rc-abrs", "cr,srba->scba", "a=96 b=84 c=84 r=96 s=84"),
    # coupled cluster, singles and doubles
    ("ij-ikl-ljk", "lki,kjl->ji", "i=192 j=188 k=188 l=192"),
    ("ijk-ikl-lj", "lki,jl->kji", "i=192 j=188 k=188 l=192"),
    ("ijk-ilk-jl", "kli,lj->kji", "i=192 j=192 k=188 l=188"),
    ("ijk-ilmk-mjl", "kmli,ljm->kji", "i=96 j=84 k=84 l=84 m=96"),
    ("ijkl-imjn-nlmk", "njmi,kmln->lkji", "i=24 j=21 k=21 l=21 m=21 n=24"),
    ("ijkl-imkn-njml", "nkmi,lmjn->lkji", "i=24 j=21 k=21 l=21 m=21 n=24"),
    ("ijkl-imln-njmk", "nlmi,kmjn->lkji", "i=24 j=21 k=21 l=21 m=21 n=24"),
    ("ijkl-imnk-njml", "knmi,lmjn->lkji", "i=24 j=21 k=21 l=21 m=21 n=24"),
    ("ijkl-mink-jnlm", "knim,mlnj->lkji", "i=24 j=24 k=21 l=21 m=24 n=21"),
    # with triples
    ("abcijk-ijma-mkbc", "amji,cbkm->kjicba", "a=24 b=20 c=20 i=12 j=10 k=10 m=24"),
    ("abcijk-ijmc-mkab", "cmji,bakm->kjicba", "a=24 b=20 c=20 i=12 j=10 k=10 m=24"),
    ("abcijk-ikmb-mjac", "bmki,cajm->kjicba", "a=24 b=20 c=20 i=12 j=10 k=10 m=24"),
    ("abcijk-jkma-mibc", "amkj,cbim->kjicba", "a=24 b=20 c=20 i=10 j=12 k=10 m=24"),
    ("abcijk-jkmc-miab", "cmkj,baim->kjicba", "a=24 b=20 c=20 i=10 j=12 k=10 m=24"),
    ("abcijk-eiac-jkeb", "caie,bekj->kjicba", "a=24 b=20 c=20 e=24 i=10 j=12 k=10"),
    ("abcijk-ejab-ikec", "baje,ceki->kjicba", "a=24 b=20 c=20 e=24 i=12 j=10 k=10"),
    ("abcijk-ejbc-ikea", "cbje,aeki->kjicba", "a=24 b=20 c=20 e=24 i=12 j=10 k=10"),
    ("abcijk-ekac-ijeb", "cake,beji->kjicba", "a=24 b=20 c=20 e=24 i=12 j=10 k=10"),
)


def sizes(text: str) -> dict[str, int]:
    """`a=3 b=4` as a dict."""
    return {part[0]: int(part[2:]) for part in text.split()}
