// Races of programs that speak to the process platform themselves: forged calls in thread slots, forged frame calls.
#pragma once
#include "races.h"

bool forged_setup(void);
void forged_fast(unsigned round);
void forged_slots(unsigned round);
void forged_frames(unsigned round);
void forged_frames_and_forks(unsigned round);
void forged_kicks(unsigned round);
