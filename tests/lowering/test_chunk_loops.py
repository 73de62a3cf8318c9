"""Chunk loops of a listing made by hand."""

from amk.lowering.chunk_loops import ChunkLoop, chunk_loops

LISTING = """
.text.decode:
        /*0000*/                   MOV R1, c[0x0][0x28] ;
.L_x_1:
        /*0010*/                   IADD3 R2, R2, 0x1, RZ ;
.L_x_2:
        /*0020*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [R78+URZ], R21 ;
        /*0030*/              @!P0 BRA `(.L_x_2) ;
        /*0040*/                   HMMA.16816.F32.BF16 R36, R52, R24, R36 ;
        /*0050*/                   HMMA.16816.F32.BF16 R36, R52, R24, R36 ;
        /*0060*/               @P1 UBLKCP.S.G [UR8], [UR4], UR6 ;
        /*0070*/              @!P0 BRA `(.L_x_1) ;
.L_x_3:
        /*0080*/                   HMMA.16816.F32.BF16 R36, R52, R24, R36 ;
        /*0090*/              @!P0 BRA `(.L_x_3) ;
        /*00a0*/                   BRA `(.L_x_4) ;
.L_x_4:
        /*00b0*/              @!P2 BRA `(.L_x_1) ;
        /*00c0*/                   EXIT ;
"""


def test_only_innermost_loops_with_a_refill_count_and_waiting_does_not() -> None:
    assert chunk_loops(LISTING) == (ChunkLoop(instructions=5, products=2),)


def test_the_rate_is_that_of_four_schedulers() -> None:
    assert ChunkLoop(100, 8).drain_gbps(4096, 2.0) == 4 * 4096 * 2.0 / 100
    assert chunk_loops("") == ()
